// Q4_K: eight groups. Half d, half dmin, twelve bytes of a six-bit scale and minimum for each group, nibbles: of two groups
// at a time 32 bytes, the first group's the low ones. A weight is d * scale * nibble - dmin * minimum.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q4_K {
  static constexpr TensorRow kRow{.name = "Q4_K",
                                  .id = 12,
                                  .block_weights = 256,
                                  .block_bytes = 144,
                                  .planes = {.quants = 1, .scales = 2},
                                  .units = {.minima = true, .bias = 8},
                                  .file_type = 15};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t group, std::uint32_t q) {
    const std::uint64_t low = load64(block + 16 + group / 2 * 32 + q * 8) >> (group % 2 * 4);
    return low & kNibbleOfEach;
  }
  // d, dmin and the packed scales and minima, as they are.
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 16); }
  // Multiplied out, which costs half a bit a weight and spares kernels as much work as the nibbles do.
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t group, std::uint32_t) {
    const float scale =
        half_to_float(load16(block)) * static_cast<float>(packed_scale(block + 4, group));
    const float minimum =
        -half_to_float(load16(block + 2)) * static_cast<float>(packed_minimum(block + 4, group));
    return {to_half(scale), middle(scale, minimum, 8)};
  }

  static double spread() { return uniform_spread(16) * kMeanPackedScale; }
  static void set_scale(float scale, std::uint8_t* block) {
    settle_packed_scales(block + 4);
    store16(block, to_half(std::fabs(scale)));
    store16(block + 2, to_half(std::fabs(scale) * 7.5F));
  }
};

}  // namespace bulkhead::gpu::kernels::types
