// The finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). Every bit
// of the result depends on every bit of the input. It is one to one, and it is not cryptographic.
#pragma once

#include <cstdint>

namespace bulkhead {

// The step that splitmix64 adds to its state before each number. The state takes all 2^64 values before one repeats.
constexpr std::uint64_t kSplitmixStep = 0x9E3779B97F4A7C15;

constexpr std::uint64_t splitmix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

}  // namespace bulkhead
