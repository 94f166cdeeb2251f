// What a model's file recommends for samplers: the worker samples with it, and the daemon tells clients of it.
#pragma once

#include <cstdint>
#include <span>

#include "ipc/messages.hpp"

namespace bulkhead::ipc {

// Sets the samplers that the request has left open (Submit::open_samplers) to what the model's file recommends.
void take_advice(std::span<const SamplingAdvice> advice, std::uint32_t open, Sampling& sampling);

}  // namespace bulkhead::ipc
