// Finds out what a template supports by rendering small conversations that contain marked words.
#pragma once

#include "worker/model/template/chat.hpp"

namespace bulkhead::jinja {

// A template that always fails supports nothing, and needs nothing. `source` is the template's.
Abilities probe(const Chat& chat, std::string_view source);

}  // namespace bulkhead::jinja
