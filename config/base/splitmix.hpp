// The finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
// 2014): every bit of the result depends on every bit of the number. One to one, and no secret.
#pragma once

#include <cstdint>

namespace bulkhead {

// What splitmix64 adds to its state before each number: no two of 2^64 sums are the same.
constexpr std::uint64_t kSplitmixStep = 0x9E3779B97F4A7C15;

constexpr std::uint64_t splitmix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

}  // namespace bulkhead
