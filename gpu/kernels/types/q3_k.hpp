// Q3_K: a block has eight groups of 32 weights.
//   32 bytes                        bit g of byte i is the third bit of weight i of group g
//   for each four groups 32 bytes   two bits of each weight; the first group has the low bits
//   sixteen six-bit scales, half d
// A weight is d * (scale - 32) * (three bits - 4).
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q3_K {
  static constexpr TensorRow kRow{.name = "Q3_K",
                                  .id = 11,
                                  .block_weights = 256,
                                  .block_bytes = 110,
                                  .planes = {.high = 12, .scales = 2, .supers = 2},
                                  .units = {.scales = UnitScales::kSupers, .bias = 4},
                                  .file_type = 12};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t group, std::uint32_t q) {
    const std::uint64_t low = load64(block + 32 + group / 4 * 32 + q * 8) >> (group % 4 * 2);
    const std::uint64_t third = load64(block + q * 8) >> group;
    return (low & kTwoBitsOfEach) | ((third & kBitOfEach) << 2);
  }
  // Scale i has its low four bits in byte i % 8, and its two high bits in byte 8 + i % 4.
  static std::int8_t sub_scale(const std::uint8_t* block, std::uint32_t i) {
    const std::uint8_t* const packed = block + 96;
    const int low = (packed[i % 8] >> (i / 8 * 4)) & 15;
    const int high = (packed[8 + i % 4] >> (i / 4 * 2)) & 3;
    return static_cast<std::int8_t>((low | high << 4) - 32);
  }
  static std::uint16_t super_scale(const std::uint8_t* block) { return load16(block + 108); }

  // Assumes random scales from -32 to 31 and weights from -4 to 3.
  static double spread() { return std::sqrt(341.5 * 5.5); }
  static void set_scale(float scale, std::uint8_t* block) { store16(block + 108, to_half(scale)); }
};

}  // namespace bulkhead::gpu::kernels::types
