// IQ1_M: a block has eight groups of 32 weights.
//   for each group 4 bytes        low bits of four indices into IQ1_S's grid, whose entries are eight values
//   for each group 4 x 4 bits     three high bits of an index, and whether 1/8 is subtracted from its values or added
//   four times 16 bits            four scales of three bits, and four bits of the half d; each scale is for 16 weights
// A weight is d * (1 + 2 scale) * (-1, 0 or 1, plus or minus 1/8). Kernels get three bits as IQ1_S has them.
#pragma once

#include "gpu/kernels/codebook_bits.hpp"
#include "gpu/kernels/tensor_row.hpp"
#include "gpu/kernels/types/iq1_s.hpp"

namespace bulkhead::gpu::kernels::types {

struct IQ1_M {
  static constexpr TensorRow kRow{.name = "IQ1_M",
                                  .id = 29,
                                  .block_weights = 256,
                                  .block_bytes = 56,
                                  .planes = {.high = 12, .scales = 2, .supers = 2},
                                  .units = {.scales = UnitScales::kSixteens, .bias = 128},
                                  .codebook = {-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                                  .file_type = 31};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t group, std::uint32_t q) {
    const std::uint32_t more =
        static_cast<std::uint32_t>(block[32 + group * 2 + q / 2]) >> (q % 2 * 4);
    const std::uint16_t entry = IQ1_S::kGrid[block[group * 4 + q] | (more & 7) << 8];
    return spread_pairs(entry) | ((more & 8) != 0 ? kBitOfEach << 2 : 0);
  }
  static std::int8_t sub_scale(const std::uint8_t* block, std::uint32_t sixteen) {
    return static_cast<std::int8_t>(
        1 + 2 * ((load16(block + 48 + sixteen / 4 * 2) >> (3 * (sixteen % 4))) & 7));
  }
  static std::uint16_t super_scale(const std::uint8_t* block) {
    std::uint32_t bits = 0;
    for (std::uint32_t i = 0; i < 4; ++i)
      bits |= static_cast<std::uint32_t>(load16(block + 48 + i * 2) >> 12) << (4 * i);
    return static_cast<std::uint16_t>(bits);
  }
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t group,
                              std::uint32_t sixteen) {
    const int odd = sub_scale(block, group * 2 + sixteen);
    return {to_half(half_to_float(super_scale(block)) * 0.125F * static_cast<float>(odd))};
  }

  static double spread() { return 6.2472 * kOddThreeBits / 8; }
  static void set_scale(float scale, std::uint8_t* block) {
    const std::uint32_t bits = to_half(scale);
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t scales = load16(block + 48 + i * 2) & 0xfffU;
      store16(block + 48 + i * 2,
              static_cast<std::uint16_t>(scales | ((bits >> (4 * i)) & 15U) << 12));
    }
  }
};

}  // namespace bulkhead::gpu::kernels::types
