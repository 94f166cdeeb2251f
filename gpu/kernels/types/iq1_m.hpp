// IQ1_M: eight groups. Four bytes of each group, low bits of places in IQ1_S's grid; two bytes of each group, four times three
// higher bits and whether an eighth is taken from each value or added; four times sixteen bits, of which twelve are four
// scales of three bits, and the four above, together, half d. A weight is as IQ1_S's, with a scale for each sixteen.
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
