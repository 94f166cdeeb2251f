// Finds out what a template supports by rendering small conversations that contain marked words.
#pragma once

#include "worker/model/template/chat.hpp"

namespace bulkhead::jinja {

// A template that always fails supports nothing, and needs nothing.
Abilities probe(const Chat& chat);

}  // namespace bulkhead::jinja
