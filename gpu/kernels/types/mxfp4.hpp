// MXFP4: a byte e and 32 nibbles; byte i of the nibbles has weight i and weight i + 16. A weight is 2^(e - 128) times
// the value of its nibble, which is twice a four-bit float.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct MXFP4 {
  static constexpr TensorRow kRow{
      .name = "MXFP4",
      .id = 39,
      .block_weights = 32,
      .block_bytes = 17,
      .planes = {.quants = 1, .scales = 2},
      .units = {.bias = 128},
      .codebook = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
      .file_type = 38};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t, std::uint32_t q) {
    return (load64(block + 1 + q % 2 * 8) >> (q / 2 * 4)) & kNibbleOfEach;
  }
  // Stores the upper half of the scale as a float. The lower half is zero, because the scale is a power of two.
  static void scales(const std::uint8_t* block, std::uint8_t* to) {
    store16(to, static_cast<std::uint16_t>(bits(block[0]) >> 16));
  }
  // A half can hold the powers from 2^-24 to 2^15.
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t, std::uint32_t) {
    return {to_half(std::bit_cast<float>(bits(block[0])))};
  }

  static double spread() { return codebook_spread(kRow); }
  static void set_scale(float scale, std::uint8_t* block) {
    block[0] = static_cast<std::uint8_t>(std::ilogb(std::fabs(scale) * 1.4142135F) + 128);
  }

 private:
  // Returns the bits of 2^(e - 128). The first two are subnormal.
  static std::uint32_t bits(std::uint32_t e) { return e < 2 ? 0x00200000U << e : (e - 1) << 23; }
};

}  // namespace bulkhead::gpu::kernels::types
