// How a matrix of quantised weights lies in device memory. A type's row (tensor_row.hpp) says which of the parts
// below the type has and how large they are; types/NAME.hpp says what they contain.
//
// In planes: the file's blocks are taken apart so that every load is aligned and neighbouring lanes load neighbouring
// words. The bits are the same in another order (weights.glsl reads them):
//
//   quants  [row][plane][group][16 bytes]   group: 32 weights. Nibbles, one plane: byte i has weight i in its low and
//                                           weight i + 16 in its high nibble. Bytes, two planes: weights 0..15, 16..31.
//                                           Halves four, floats eight: 8 or 4 weights each. Or none.
//   high    [row][group][4, 8, 12 bytes]    the bits beyond nibbles, or all bits if there are no nibbles: bit i of a
//                                           word belongs to weight i; or two words with two bits a weight; or both, the
//                                           two words first
//   scales  [row][group][2 or 4 bytes]      a half, or a half and a half minimum; or 16 bytes of eight groups: Q4_K's
//                                           and Q5_K's d, dmin and packed scales as in the file, or sixteen int8
//   supers  [row][group / 8][2 bytes]       if scales are int8: half d
//
// Each plane starts at a multiple of 256 bytes; a row's part of a plane is a whole number of words.
//
// For matrix units there are no planes. Sixteen rows are a block. A block consists of stages of 128 weights of each
// row, in the order in which the 32 lanes of a subgroup load them into the units' fragments. From each group, lane 4
// * r + q takes weights 8 * q ... 8 * q + 7 of rows 2 * r (even) and 2 * r + 1 (odd), as four pairs p. A word of
// nibbles has pair p at bits 4 * p and 16 + 4 * p. UnitForm says which of these parts a stage has:
//
//   halves           [group 4][pairs 0 and 1, pairs 2 and 3][lane] of 16 bytes: halves of the even
//                    and the odd row's first pair, then of their second
//   bytes            [group 4][lane] of 16 bytes: of each row eight bytes, plus 128, in the order 0, 2,
//                    1, 3, 4, 6, 5, 7
//   nibbles          [groups 0 and 1, groups 2 and 3][lane] of 16 bytes: of each group each row's word
//   one high bit     [lane] of 8 bytes: of two groups a word, with each row's bits at
//                    8 * (group % 2) + 4 * (row % 2) + p and 16 bits on
//   two high bits    [lane] of 16 bytes: of each group a word, at 8 * (row % 2) + 2 * p and 16 bits on
//   scales, minima   [r][group 4][row 2] halves; kSixteens: those of weights 0..15, then of 16..31
//                    (minima: of the integers less the bias, which are what kernels multiply)
//   kSupers          two stages are a pair: a header of [r] d of both rows, then of each stage
//                    [lane]: of each row the scales of groups q % 2 and q % 2 + 2 for weights 0..15
//                    (q < 2) or 16..31, plus 128; then each stage's nibbles, then each one's high bits
#pragma once

#include <cstdint>

#include "gpu/kernels/tensor_types.hpp"

namespace bulkhead::gpu::kernels {

using WeightType = TensorType;

constexpr std::uint32_t kGroupWeights = 32;
// For matrix units: rows are padded to whole stages of this many weights.
constexpr std::uint32_t kUnitStageWeights = 128;

struct WeightLayout {
  std::uint32_t groups = 0;  // per row; the last one is padded with zeros (float types only)
  std::uint64_t rows = 0;
  // Bytes of one row in each plane, and each plane's offset.
  std::uint64_t quants_row = 0, high_row = 0, scales_row = 0, supers_row = 0;
  std::uint64_t quants = 0, high = 0, scales = 0, supers = 0;
  std::uint64_t bytes = 0;        // all planes together
  std::uint64_t block_bytes = 0;  // matrix units: bytes of a block of sixteen rows; otherwise 0

  // Returns how many bytes one read of the whole matrix moves.
  std::uint64_t bytes_read() const {
    if (block_bytes != 0) return bytes;
    return rows * (quants_row + high_row + scales_row + supers_row);
  }
};

constexpr WeightLayout weight_layout(TensorType type, std::uint64_t rows, std::uint64_t width) {
  const PlaneForm& planes = row_of(type).planes;
  WeightLayout layout;
  layout.rows = rows;
  layout.groups = static_cast<std::uint32_t>((width + kGroupWeights - 1) / kGroupWeights);
  const std::uint64_t groups = layout.groups;
  const auto whole_words = [](std::uint64_t n) { return (n + 3) & ~std::uint64_t{3}; };
  layout.quants_row = groups * 16 * planes.quants;
  layout.high_row = groups * planes.high;
  layout.scales_row = whole_words(groups * planes.scales);
  layout.supers_row = whole_words(groups / 8 * planes.supers);
  const auto align = [](std::uint64_t n) { return (n + 255) & ~std::uint64_t{255}; };
  layout.high = align(layout.quants + rows * layout.quants_row);
  layout.scales = align(layout.high + rows * layout.high_row);
  layout.supers = align(layout.scales + rows * layout.scales_row);
  layout.bytes = align(layout.supers + rows * layout.supers_row);
  return layout;
}

constexpr std::uint32_t kUnitBlockRows = 16;

// The sizes of the parts of a block in units' form, in bytes. A stage has quants, high bits, scales and minima, in
// this order. With UnitScales::kSupers two stages share a header before both: halves for 256 weights, and the int8
// scales of both stages.
constexpr std::uint32_t unit_quant_bytes(const UnitForm& form) {
  return form.quants == UnitQuants::kHalves  ? 4096
         : form.quants == UnitQuants::kBytes ? 2048
                                             : 1024;
}
constexpr std::uint32_t unit_high_bytes(const UnitForm& form) {
  return form.high_bits * 256;
}
// The size of the scales; the minima have the same size.
constexpr std::uint32_t unit_scale_bytes(const UnitForm& form) {
  if (form.quants == UnitQuants::kHalves || form.scales == UnitScales::kSupers) return 0;
  return form.scales == UnitScales::kSixteens ? 256 : 128;
}
constexpr std::uint32_t kUnitHeaderBytes = 32 + 2 * 128;  // kSupers
constexpr bool unit_stages_in_pairs(const UnitForm& form) {
  return form.scales == UnitScales::kSupers;
}
// The size of one stage of a block; of two stages if they come in pairs.
constexpr std::uint32_t unit_stage_bytes(const UnitForm& form) {
  const std::uint32_t stage = unit_quant_bytes(form) + unit_high_bytes(form) +
                              unit_scale_bytes(form) * (form.minima ? 2 : 1);
  return unit_stages_in_pairs(form) ? kUnitHeaderBytes + 2 * stage : stage;
}

// For matrix units: `quants` starts a single part that contains everything; rows and stages are padded with zeros.
constexpr WeightLayout unit_layout(TensorType type, std::uint64_t rows, std::uint64_t width) {
  const UnitForm& form = row_of(type).units;
  WeightLayout layout;
  const std::uint64_t stages = (width + kUnitStageWeights - 1) / kUnitStageWeights;
  layout.rows = rows;
  layout.groups = static_cast<std::uint32_t>(stages * (kUnitStageWeights / kGroupWeights));
  layout.block_bytes = stages / (unit_stages_in_pairs(form) ? 2 : 1) * unit_stage_bytes(form);
  layout.bytes = (rows + kUnitBlockRows - 1) / kUnitBlockRows * layout.block_bytes;
  return layout;
}

}  // namespace bulkhead::gpu::kernels
