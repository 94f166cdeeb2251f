// Helpers of the tensor types IQ1_* to IQ3_*, whose weights are looked up in grids by fours or eights. An entry of a
// grid holds numbers of two or three bits that stand for magnitudes; a number and a sign together are an index into a
// codebook.
#pragma once

#include <bit>
#include <cstdint>

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

// Spreads eight two-bit numbers to eight bytes.
inline std::uint64_t spread_pairs(std::uint32_t entry) {
  std::uint64_t x = entry;
  x = (x | (x << 24)) & 0x000000ff000000ffU;
  x = (x | (x << 12)) & 0x000f000f000f000fU;
  return (x | (x << 6)) & kTwoBitsOfEach;
}

// Spreads two times four four-bit numbers to eight bytes.
inline std::uint64_t spread_nibbles(std::uint32_t first, std::uint32_t second) {
  std::uint64_t x = first | std::uint64_t{second} << 32;
  x = (x | (x << 8)) & 0x00ff00ff00ff00ffU;
  return (x | (x << 4)) & kNibbleOfEach;
}

// Returns eight signs of which the file keeps seven: the number of set signs is even.
inline std::uint32_t even_signs(std::uint32_t seven) {
  return seven | static_cast<std::uint32_t>(std::popcount(seven) & 1) << 7;
}

// The root mean square of 1 + 2 s for random s of four and of three bits.
constexpr double kOddFourBits = 18.466, kOddThreeBits = 9.2195;

}  // namespace bulkhead::gpu::kernels::types
