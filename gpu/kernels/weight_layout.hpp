// How a matrix of quantised weights lies in device memory: the file's blocks taken apart into
// planes, so that every load is aligned and lanes side by side load side by side. Same bits,
// another order (weights.glsl reads it):
//
//   quants  [row][plane][group][16 bytes]   group: 32 weights. 4-bit types one plane: byte i has weight i in its low and
//                                           weight i + 16 in its high nibble. Q8_0 two planes: weights 0..15, 16..31.
//                                           F16, BF16 four, F32 eight: 8 or 4 weights each.
//   high    [row][group][4 bytes]           Q5_*: bit i is weight i's fifth. Q6_K: 8 bytes, two bits each.
//   scales  [row][group][2 or 4 bytes]      half d, or half d and m; rows of an even number of halves
//           [row][group / 8][16 bytes]      Q4_K, Q5_K: d, dmin, packed 6-bit scales, as in the file. Q6_K: sixteen int8.
//   supers  [row][group / 8][2 bytes]       Q6_K: half d; rows of an even number of halves
//
// Each plane starts at a multiple of 256 bytes.
//
// For matrix units there are no planes. Sixteen rows are a block, which lies in stages of 128
// weights of a row (types with blocks of 256: of 256, a header and two stages), in the order in
// which the 32 lanes of a subgroup take them into the units' fragments. Lane 4 * r + q takes of rows
// 2 * r (even) and 2 * r + 1 (odd), of each group, weights 8 * q ... 8 * q + 7, as four pairs p. A
// word of nibbles has pair p's at bits 4 * p and 16 + 4 * p.
//
//   F16, BF16, F32   [group 4][pairs 0 and 1, pairs 2 and 3][lane] of 16 bytes: halves of the even
//                    and the odd row's first pair, then of their second
//   Q8_0             [group 4][lane] of 16 bytes: of each row eight bytes, plus 128, in the order 0, 2,
//                    1, 3, 4, 6, 5, 7; scales
//   4-bit types      [groups 0 and 1, groups 2 and 3][lane] of 16 bytes: of each group each row's word;
//                    Q5_*: [lane] of 8 bytes: of two groups a word, with each row's fifth bits at
//                    8 * (group % 2) + 4 * (row % 2) + p and 16 bits on; scales, minima
//   scales, minima   [r][group 4][row 2] halves
//                    (minima: of the integers less 8 or 16, which are what kernels multiply)
//   Q4_K, Q5_K       as Q4_1 and Q5_1: each group's scale and minimum multiplied out, rounded to halves
//   Q6_K             [r] d of both rows; of each stage [lane]: of each row the scales of groups q % 2 and
//                    q % 2 + 2 for weights 0..15 (q < 2) or 16..31, plus 128; nibbles; two bits each:
//                    [lane] of 16 bytes: of each group a word, at 8 * (row % 2) + 2 * p and 16 bits on
#pragma once

#include <cstdint>

namespace bulkhead::gpu::kernels {

// Numbered as GGUF numbers its tensor types.
enum class WeightType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kBF16 = 30,
};

constexpr std::uint32_t kGroupWeights = 32;
// For matrix units: rows are padded to whole stages of so many weights.
constexpr std::uint32_t kUnitStageWeights = 128;

struct WeightLayout {
  std::uint32_t groups = 0;  // of a row, the last one padded with zeros (float types only)
  std::uint64_t rows = 0;
  // Bytes of one row in each plane, and where the plane starts.
  std::uint64_t quants_row = 0, high_row = 0, scales_row = 0, supers_row = 0;
  std::uint64_t quants = 0, high = 0, scales = 0, supers = 0;
  std::uint64_t bytes = 0;        // of all planes
  std::uint64_t block_bytes = 0;  // matrix units: of sixteen rows; otherwise 0

  // What reading the whole matrix once moves.
  std::uint64_t bytes_read() const {
    if (block_bytes != 0) return bytes;
    return rows * (quants_row + high_row + scales_row + supers_row);
  }
};

constexpr std::uint32_t weight_planes(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 8;
    case WeightType::kF16:
    case WeightType::kBF16:
      return 4;
    case WeightType::kQ8_0:
      return 2;
    default:
      return 1;
  }
}

constexpr WeightLayout weight_layout(WeightType type, std::uint64_t rows, std::uint64_t width) {
  WeightLayout layout;
  layout.rows = rows;
  layout.groups = static_cast<std::uint32_t>((width + kGroupWeights - 1) / kGroupWeights);
  const std::uint64_t groups = layout.groups;
  const auto even = [](std::uint64_t n) { return (n + 1) & ~std::uint64_t{1}; };
  layout.quants_row = groups * 16 * weight_planes(type);
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
    case WeightType::kQ4_0:
    case WeightType::kQ8_0:
    case WeightType::kIQ4_NL:
      layout.scales_row = even(groups) * 2;
      break;
    case WeightType::kQ5_0:
      layout.high_row = groups * 4;
      layout.scales_row = even(groups) * 2;
      break;
    case WeightType::kQ4_1:
      layout.scales_row = groups * 4;
      break;
    case WeightType::kQ5_1:
      layout.high_row = groups * 4;
      layout.scales_row = groups * 4;
      break;
    case WeightType::kQ4_K:
      layout.scales_row = groups * 2;
      break;
    case WeightType::kQ5_K:
      layout.high_row = groups * 4;
      layout.scales_row = groups * 2;
      break;
    case WeightType::kQ6_K:
      layout.high_row = groups * 8;
      layout.scales_row = groups * 2;
      layout.supers_row = even(groups / 8) * 2;
      break;
  }
  const auto align = [](std::uint64_t n) { return (n + 255) & ~std::uint64_t{255}; };
  layout.high = align(layout.quants + rows * layout.quants_row);
  layout.scales = align(layout.high + rows * layout.high_row);
  layout.supers = align(layout.scales + rows * layout.scales_row);
  layout.bytes = align(layout.supers + rows * layout.supers_row);
  return layout;
}

constexpr std::uint32_t kUnitBlockRows = 16;

// The type that kernels see: floats are all halves there, and a group's scale and minimum multiplied
// out, which costs half a bit a weight and spares the kernel as much work as the nibbles do.
constexpr WeightType unit_type(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kBF16:
      return WeightType::kF16;
    case WeightType::kQ4_K:
      return WeightType::kQ4_1;
    case WeightType::kQ5_K:
      return WeightType::kQ5_1;
    default:
      return type;
  }
}

// Of a block, in one stage; Q6_K: in two, which share a header.
constexpr std::uint32_t unit_stage_bytes(WeightType type) {
  switch (unit_type(type)) {
    case WeightType::kF16:
      return 4096;
    case WeightType::kQ8_0:
      return 2176;
    case WeightType::kQ4_0:
    case WeightType::kIQ4_NL:
      return 1152;
    case WeightType::kQ4_1:
      return 1280;
    case WeightType::kQ5_0:
      return 1408;
    case WeightType::kQ5_1:
      return 1536;
    case WeightType::kQ6_K:
      return 3360;
    default:
      return 0;
  }
}

constexpr bool unit_type_is_super(WeightType type) {
  return type == WeightType::kQ6_K;
}

// For matrix units: everything from `quants` on, rows and stages padded with zeros.
constexpr WeightLayout unit_layout(WeightType type, std::uint64_t rows, std::uint64_t width) {
  WeightLayout layout;
  const std::uint64_t stages = (width + kUnitStageWeights - 1) / kUnitStageWeights;
  layout.rows = rows;
  layout.groups = static_cast<std::uint32_t>(stages * (kUnitStageWeights / kGroupWeights));
  layout.block_bytes = stages / (unit_type_is_super(type) ? 2 : 1) * unit_stage_bytes(type);
  layout.bytes = (rows + kUnitBlockRows - 1) / kUnitBlockRows * layout.block_bytes;
  return layout;
}

}  // namespace bulkhead::gpu::kernels
