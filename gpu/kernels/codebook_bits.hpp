// What the tensor types share whose weights are looked up in grids by the four or the eight (IQ1_* to
// IQ3_*): an entry's magnitudes are numbers of two or three bits, which with their sign make the code
// of a codebook.
#pragma once

#include <bit>
#include <cstdint>

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

// Eight numbers of two bits to eight bytes.
inline std::uint64_t spread_pairs(std::uint32_t entry) {
  std::uint64_t x = entry;
  x = (x | (x << 24)) & 0x000000ff000000ffU;
  x = (x | (x << 12)) & 0x000f000f000f000fU;
  return (x | (x << 6)) & kTwoBitsOfEach;
}

// Four numbers of four bits each to eight bytes.
inline std::uint64_t spread_nibbles(std::uint32_t first, std::uint32_t second) {
  std::uint64_t x = first | std::uint64_t{second} << 32;
  x = (x | (x << 8)) & 0x00ff00ff00ff00ffU;
  return (x | (x << 4)) & kNibbleOfEach;
}

// Eight signs of which seven bits are kept: their number is even.
inline std::uint32_t even_signs(std::uint32_t seven) {
  return seven | static_cast<std::uint32_t>(std::popcount(seven) & 1) << 7;
}

// The root mean square of 1 + 2 s for random s of so many bits.
constexpr double kOddFourBits = 18.466, kOddThreeBits = 9.2195;

}  // namespace bulkhead::gpu::kernels::types
