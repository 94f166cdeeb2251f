// What operations name: indices into the lists of a ModelGraph (graph.hpp), and the places that are no activation.
#pragma once

#include <cstdint>
#include <limits>

namespace bulkhead::model {

// kAbsent: the model has none.
using TensorIndex = std::uint32_t;
using VectorIndex = std::uint32_t;
using ActivationIndex = std::uint32_t;
using RopeIndex = std::uint32_t;
using KvIndex = std::uint32_t;
using StateIndex = std::uint32_t;
inline constexpr std::uint32_t kAbsent = std::numeric_limits<std::uint32_t>::max();

// What operations hand on beside activations: the rotated q, which waits for Attend, and what sequences keep, their
// pages and states.
inline constexpr ActivationIndex kWaitingQ = kAbsent - 1, kKept = kAbsent - 2;

}  // namespace bulkhead::model
