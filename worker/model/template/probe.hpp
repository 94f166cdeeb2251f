// Finds what a template can do by rendering small conversations with marked words in them.
#pragma once

#include "worker/model/template/chat.hpp"

namespace bulkhead::jinja {

// A template that fails at everything can do nothing, and needs nothing.
Abilities probe(const Chat& chat);

}  // namespace bulkhead::jinja
