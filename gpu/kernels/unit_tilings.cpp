// Chooses how a product is divided among subgroups. The tables have what was fastest on an H200, for whole steps of a
// Qwen2.5-7B (Q4_0, Q4_K_M, Q8_0) and a Llama-3.2-1B (F16), timed by turns (bench/RESULTS.md), or for products by
// themselves (bench-matvec, bench/history/kernels.md). Cases that were not measured use the choice of a similar case.
#include <algorithm>
#include <iterator>
#include <optional>

#include "gpu/kernels/units.hpp"

namespace bulkhead::gpu::kernels {
namespace {

constexpr std::uint32_t kMostSubgroups = 16;  // of a workgroup that divides rows
constexpr std::uint32_t kProcessors = 132;    // of an H200

// The kinds of a layer's products: few or many rows, short or long rows.
enum class Part : std::uint8_t {
  kQkv,
  kOut,
  kGateUp,
  kDown,
  kLogits,
  kOther,  // a gate and up with few rows
};

Part part_of(const MatvecShape& shape) {
  constexpr std::uint32_t kFewBlocks = 512, kLongGroups = 256;
  const std::uint32_t blocks = unit_blocks(shape);
  switch (shape.epilogue) {
    case Epilogue::kGated:
      return blocks > kFewBlocks ? Part::kGateUp : Part::kOther;
    case Epilogue::kAdd:
      return shape.groups >= kLongGroups ? Part::kDown : Part::kOut;
    case Epilogue::kStore:
    case Epilogue::kQkv:
      break;
  }
  return blocks <= kFewBlocks ? Part::kQkv : Part::kLogits;
}

// Types whose unpacking costs about the same.
enum Kind : std::uint8_t {
  kHalves = 1,
  kBytes = 2,
  kPlainNibbles = 4,
  kFourBits = 8,  // other types of four bits a weight
  kFiveBits = 16,
  kSixBits = 32
};
constexpr std::uint8_t kOtherNibbles = kFourBits | kFiveBits,
                       kNibbles = kPlainNibbles | kOtherNibbles, kAny = 63;

Kind kind_of(TensorType type) {
  const TensorRow& row = row_of(type);
  const UnitForm& form = row.units;
  if (form.quants == UnitQuants::kHalves) return kHalves;
  if (form.quants == UnitQuants::kBytes) return kBytes;
  if (form.high_bits == 2) return kSixBits;
  const bool plain = form.high_bits == 0 && !form.minima && form.scales == UnitScales::kGroups &&
                     !row.has_codebook();
  if (form.high_bits == 1) return kFiveBits;
  return plain ? kPlainNibbles : kFourBits;
}

enum class Chained : std::uint8_t { kNo, kYes };

constexpr std::uint32_t kNoMatter = 0xffffffffU;
// Models with shorter rows have smaller matrices; large tiles would make too few of them for a device (a 1B read a
// prompt of 512 tokens 7 % slower). A down has longer rows than other matrices.
constexpr std::uint32_t kLongRow = 4096, kLongDownRow = 12288;

// Neighbouring subgroups compute the segments of a row; for steps of a chain, or steps with barriers.
struct Split {
  std::uint8_t kinds;
  Part part;
  Chained chained;
  std::uint32_t from, to;  // columns
  std::uint32_t row_blocks, column_tiles, row_sets, step_groups, ahead;
  std::uint32_t piece_tiles = 0;
  std::uint32_t segments = 0;  // only for matrices whose rows have this many segments; 0: for all
};
// The first row that matches counts.
constexpr Split kSplits[] = {
    // One column.
    {kHalves, Part::kGateUp, Chained::kYes, 1, 1, 4, 1, 1, 2, 2},
    {kHalves, Part::kDown, Chained::kYes, 1, 1, 1, 1, 1, 8, 2},
    {kBytes, Part::kGateUp, Chained::kYes, 1, 1, 2, 1, 2, 2, 2},
    {kBytes, Part::kQkv, Chained::kYes, 1, 8, 2, 1, 1, 4, 0},
    {kPlainNibbles, Part::kQkv, Chained::kYes, 1, 1, 2, 1, 1, 2, 1},
    {kOtherNibbles, Part::kQkv, Chained::kYes, 1, 1, 1, 1, 1, 4, 2, 0, 15},  // gemma-3-12b
    {kOtherNibbles, Part::kQkv, Chained::kYes, 1, 1, 2, 1, 1, 2, 2},
    // For a 7B and phi-4. The same sharing of five segments made a Llama-3.1-8B a quarter slower.
    {kFourBits, Part::kGateUp, Chained::kYes, 1, 1, 3, 1, 2, 2, 2, 0, 4},
    // A tile of columns.
    {kHalves, Part::kGateUp, Chained::kYes, 3, 8, 2, 1, 2, 2, 2},
    {kHalves, Part::kOut, Chained::kYes, 3, 8, 1, 1, 1, 4, 2},
    {kHalves, Part::kDown, Chained::kYes, 2, 8, 1, 1, 1, 4, 1},
    {kBytes | kOtherNibbles, Part::kGateUp, Chained::kYes, 2, 8, 1, 1, 2, 2, 1},
    {kPlainNibbles, Part::kGateUp, Chained::kYes, 2, 8, 2, 1, 1, 2, 1},
    {kBytes, Part::kDown, Chained::kYes, 2, 8, 2, 1, 1, 4, 1},
    {kPlainNibbles, Part::kQkv, Chained::kYes, 2, 8, 2, 1, 1, 4, 2},
    {kOtherNibbles, Part::kQkv, Chained::kYes, 2, 4, 2, 1, 1, 2, 1},
    {kOtherNibbles, Part::kQkv, Chained::kYes, 5, 8, 2, 1, 1, 4, 2},
    // Two tiles.
    {kOtherNibbles, Part::kGateUp, Chained::kYes, 9, 16, 4, 2, 1, 2, 2, 4, 4},
    {kAny, Part::kGateUp, Chained::kYes, 9, 16, 1, 2, 2, 2, 2},
    {kBytes, Part::kOut, Chained::kYes, 9, 16, 1, 2, 1, 2, 2},
    {kNibbles, Part::kOut, Chained::kYes, 9, 16, 1, 2, 1, 4, 1},
    {kHalves, Part::kDown, Chained::kYes, 9, 16, 1, 2, 1, 2, 2},
    {kBytes | kPlainNibbles, Part::kDown, Chained::kYes, 9, 16, 2, 2, 1, 4, 2},
    {kHalves, Part::kQkv, Chained::kYes, 9, 16, 2, 2, 1, 2, 1},
    {kBytes, Part::kQkv, Chained::kYes, 9, 16, 1, 2, 1, 2, 2},
    {kPlainNibbles, Part::kQkv, Chained::kYes, 9, 16, 1, 2, 1, 4, 1},
    // Some columns, with barriers.
    {kBytes | kNibbles, Part::kGateUp, Chained::kNo, 17, 32, 1, 2, 1, 2, 0},
    {kBytes, Part::kOut, Chained::kNo, 17, 32, 2, 2, 1, 4, 0},
    {kOtherNibbles, Part::kOut, Chained::kNo, 17, 32, 1, 2, 1, 2, 0},
    {kBytes, Part::kQkv, Chained::kNo, 17, 32, 1, 2, 1, 2, 0},
    {kOtherNibbles | kSixBits, Part::kDown, Chained::kNo, 17, 32, 1, 2, 1, 4, 0},
    {kBytes, Part::kGateUp, Chained::kNo, 33, 64, 1, 2, 2, 2, 0},
    {kBytes, Part::kQkv, Chained::kNo, 33, 64, 2, 2, 1, 4, 0},
    {kHalves, Part::kQkv, Chained::kNo, 33, 64, 1, 4, 1, 2, 0},
    {kHalves, Part::kOut, Chained::kNo, 33, 128, 1, 4, 1, 2, 0},
    {kHalves, Part::kDown, Chained::kNo, 33, 128, 1, 4, 1, 2, 0},
    {kOtherNibbles, Part::kOut, Chained::kNo, 33, 128, 1, 2, 1, 2, 0},
};

// Neighbouring subgroups compute the segments of a row, as above, but in tiles so large that they add their sums by
// pieces. Large tiles load less: each subgroup that takes other columns loads and unpacks the same weights again, and
// each that takes other rows loads the same inputs again.
struct Pieces {
  std::uint8_t kinds;
  Part part;
  std::uint32_t from, to;  // columns
  std::uint32_t row_blocks, column_tiles, row_sets, step_groups, ahead, piece_tiles;
  std::uint32_t most_inputs = kNoMatter;  // weights of a row
  std::uint32_t most_workgroups = kNoMatter, most_segments = kNoMatter;
};
// The first row that matches and suits the number of workgroups (suits_device) counts.
constexpr Pieces kPieces[] = {
    {kHalves | kNibbles, Part::kQkv, 17, 32, 4, 4, 1, 1, 0, 4},
    {kHalves, Part::kQkv, 17, 32, 2, 4, 1, 2, 0, 4},
    {kBytes, Part::kQkv, 17, 32, 1, 4, 1, 2, 1, 2},
    {kBytes, Part::kQkv, 33, 64, 1, 8, 1, 2, 0, 4},
    {kHalves | kBytes | kNibbles, Part::kQkv, 33, 256, 2, 8, 1, 1, 0, 4},
    {kHalves | kNibbles, Part::kQkv, 33, 64, 2, 4, 1, 2, 0, 4},
    // Matrices of few rows: of the values alone, if their type is not that of q and k.
    {kSixBits, Part::kQkv, 65, 1024, 2, 8, 1, 1, 0, 4, kNoMatter, 512},
    {kAny, Part::kQkv, 129, 1024, 1, 8, 1, 2, 0, 4, kNoMatter, 132},
    {kHalves | kNibbles, Part::kOut, 17, 32, 2, 4, 1, 2, 0, 4},
    {kBytes, Part::kOut, 17, 32, 1, 4, 1, 2, 1, 2},
    {kHalves | kBytes | kNibbles, Part::kOut, 33, 256, 2, 8, 1, 1, 0, 4},
    {kHalves | kBytes | kNibbles, Part::kOut, 33, 128, 2, 4, 1, 2, 0, 4},
    {kAny, Part::kDown, 17, 32, 2, 4, 1, 2, 0, 4},
    {kAny, Part::kDown, 33, 256, 2, 8, 1, 1, 0, 4},
    {kAny, Part::kDown, 33, 128, 2, 4, 1, 2, 0, 4},
    {kHalves | kBytes | kNibbles, Part::kGateUp, 17, 32, 2, 4, 1, 2, 0, 4},
    {kBytes | kNibbles, Part::kGateUp, 33, 128, 2, 8, 1, 2, 0, 4},
    // Five segments don't fill a workgroup as four do (gemma-3-12b: 270 us, and 207 if a subgroup computes all five).
    {kBytes | kNibbles, Part::kGateUp, 129, 256, 2, 8, 2, 1, 0, 4, kNoMatter, kNoMatter, 4},
    {kHalves, Part::kGateUp, 33, 64, 2, 8, 1, 1, 0, 4, kLongRow - 1},
    {kHalves, Part::kGateUp, 65, 128, 2, 8, 1, 1, 0, 2},
    {kHalves, Part::kLogits, 17, 32, 2, 4, 4, 2, 0, 4},
    {kAny, Part::kLogits, 17, 32, 4, 4, 1, 2, 0, 4},
    {kHalves | kSixBits, Part::kLogits, 33, 64, 2, 8, 2, 1, 0, 4},
    {kBytes | kNibbles, Part::kLogits, 33, 64, 2, 8, 1, 2, 0, 4},
    {kSixBits, Part::kLogits, 65, 128, 1, 8, 8, 2, 1, 4},
    {kSixBits, Part::kLogits, 129, 256, 1, 8, 2, 1, 1, 4},
    {kHalves, Part::kLogits, 65, 256, 2, 8, 2, 2, 0, 4},
    {kBytes | kNibbles, Part::kLogits, 65, 128, 2, 8, 2, 2, 0, 4},
    {kBytes | kNibbles, Part::kLogits, 129, 256, 2, 8, 2, 1, 0, 4},
};

// Such a workgroup takes a whole processor of an H200. With fewer workgroups processors have nothing to do. With
// slightly more, most have nothing to do while a few compute a second workgroup, and smaller tiles are faster.
bool suits_device(std::uint32_t workgroups, std::uint32_t column_tiles) {
  constexpr std::uint32_t kEnough = 90, kSlightlyMore = 172;
  if (workgroups < kEnough) return false;
  return column_tiles < 8 || workgroups <= kProcessors || workgroups >= kSlightlyMore;
}

// One subgroup computes all segments of a row.
struct Serial {
  std::uint8_t kinds;
  Part part;
  std::uint32_t from, to;  // columns
  UnitTiling tiling;
  std::uint32_t least_inputs = 0;  // weights of a row
};
// In a step with more columns one subgroup computes all segments in each product; in a step with fewer columns it
// does so if a row of kSerials says so.
constexpr std::uint32_t kSplitColumns = 128, kWide = kSplitColumns + 1;
// UnitTiling: columns (of the step), row_blocks, column_tiles, subgroups, step_groups, serial,
// column_subgroups, ahead, local_totals.
constexpr Serial kSerials[] = {
    // Matrices with many rows keep the device busy without dividing a row.
    {kHalves, Part::kGateUp, 33, kSplitColumns, {0, 2, 8, 4, 2, true, 1, 0}},
    {kBytes | kNibbles, Part::kGateUp, 65, kSplitColumns, {0, 2, 4, 4, 2, true, 1, 1}},
    {kHalves, Part::kQkv, 65, kSplitColumns, {0, 2, 2, 4, 2, true, 1, 1}},
    {kAny, Part::kLogits, 33, kSplitColumns, {0, 2, 8, 4, 2, true, 1, 1}},
    // Small matrices need small tiles, or the device is not full; with many columns there are enough tiles.
    {kHalves, Part::kGateUp, kWide, 1535, {0, 2, 8, 4, 2, true, 1, 0, true}, kLongRow},
    {kHalves, Part::kGateUp, kWide, 384, {0, 2, 8, 4, 2, true, 1, 0}},
    {kHalves, Part::kQkv, kWide, 384, {0, 2, 8, 4, 2, true, 1, 0}},
    {kHalves, Part::kOut, kWide, 384, {0, 2, 2, 4, 2, true, 2, 1}},
    {kHalves, Part::kDown, kWide, 384, {0, 2, 2, 4, 2, true, 2, 1}},
    {kBytes, Part::kQkv, kWide, 384, {0, 2, 2, 4, 2, true, 2, 1}},
    {kNibbles, Part::kQkv, kWide, 384, {0, 2, 2, 4, 2, true, 2, 0}},
    {kSixBits, Part::kQkv, kWide, 384, {0, 1, 4, 4, 2, true, 1, 1}},
    {kBytes | kNibbles, Part::kOut, kWide, 384, {0, 2, 2, 4, 2, true, 2, 1}},
    {kBytes | kNibbles, Part::kDown, kWide, 384, {0, 2, 2, 4, 2, true, 2, 1}},
    {kSixBits, Part::kDown, kWide, 384, {0, 2, 4, 4, 2, true, 1, 1}},
    // Many columns. With totals in memory, registers suffice for twice as many subgroups.
    {kHalves, Part::kQkv, kWide, 767, {0, 2, 8, 4, 2, true, 1, 0, true}, kLongRow},
    {kHalves, Part::kOut, kWide, kNoMatter, {0, 2, 4, 8, 2, true, 4, 0}, kLongRow},
    {kHalves, Part::kDown, kWide, 767, {0, 2, 8, 4, 2, true, 2, 0}, kLongDownRow},
    {kHalves, Part::kGateUp, kWide, 767, {0, 2, 4, 4, 2, true, 2, 0}},
    {kHalves, Part::kQkv, kWide, 767, {0, 2, 2, 4, 2, true, 2, 1}},
    {kHalves, Part::kOut, kWide, 767, {0, 2, 2, 4, 2, true, 2, 1}},
    {kHalves, Part::kDown, kWide, 767, {0, 2, 2, 4, 2, true, 2, 1}},
    {kHalves, Part::kDown, 768, kNoMatter, {0, 2, 8, 8, 1, true, 2, 0, true}},
    {kBytes | kNibbles, Part::kDown, 1024, kNoMatter, {0, 2, 8, 4, 1, true, 2, 0, true}},
    {kSixBits, Part::kDown, 1024, kNoMatter, {0, 2, 8, 4, 1, true, 1, 0, true}},
    {kBytes | kNibbles, Part::kGateUp, kWide, kNoMatter, {0, 2, 8, 4, 2, true, 1, 0, true}},
    {kHalves, Part::kGateUp, kWide, kNoMatter, {0, 2, 8, 8, 2, true, 1, 0}},
    {kHalves, Part::kLogits, kWide, kNoMatter, {0, 4, 4, 8, 2, true, 1, 0}},
    {kHalves, Part::kOther, kWide, kNoMatter, {0, 4, 4, 8, 2, true, 1, 0}},
    {kHalves, Part::kQkv, kWide, kNoMatter, {0, 2, 8, 4, 2, true, 1, 0}, kLongRow},
    {kHalves, Part::kQkv, kWide, kNoMatter, {0, 2, 4, 4, 2, true, 2, 0}},
    {kHalves, Part::kOut, kWide, kNoMatter, {0, 2, 4, 4, 2, true, 2, 0}},
    {kHalves, Part::kDown, kWide, kNoMatter, {0, 2, 8, 4, 2, true, 2, 0}},
    {kBytes | kNibbles, Part::kQkv, kWide, kNoMatter, {0, 2, 8, 4, 1, true, 1, 0}},
    {kBytes, Part::kDown, kWide, kNoMatter, {0, 2, 8, 4, 2, true, 2, 0}},
    {kOtherNibbles, Part::kDown, kWide, kNoMatter, {0, 2, 4, 8, 2, true, 1, 1}},
    {kSixBits, Part::kDown, kWide, kNoMatter, {0, 2, 8, 4, 2, true, 2, 1}},
};
constexpr UnitTiling kOtherSerial{0, 2, 4, 8, 2, true, 1, 0};

template <typename Row>
bool is_for(const Row& row, const MatvecShape& shape) {
  return (row.kinds & kind_of(shape.type)) != 0 && row.part == part_of(shape);
}

std::optional<UnitTiling> tiling_by_pieces(const MatvecShape& shape, std::uint32_t columns) {
  const std::uint32_t segments = unit_segments(shape).count;
  const auto sets = [&](const Pieces& each) {
    return std::clamp(kMostSubgroups / segments, 1U, each.row_sets);
  };
  const auto workgroups = [&](const Pieces& each) {
    const std::uint32_t rows = sets(each) * each.row_blocks, width = each.column_tiles * 8;
    return (unit_blocks(shape) + rows - 1) / rows * ((columns + width - 1) / width);
  };
  const auto* const found = std::ranges::find_if(kPieces, [&](const Pieces& each) {
    return is_for(each, shape) && columns >= each.from && columns <= each.to &&
           shape.groups * kGroupWeights <= each.most_inputs &&
           workgroups(each) <= each.most_workgroups && segments <= each.most_segments &&
           suits_device(workgroups(each), each.column_tiles);
  });
  if (found == std::end(kPieces)) return std::nullopt;
  return UnitTiling{columns,
                    found->row_blocks,
                    found->column_tiles,
                    segments * sets(*found),
                    found->step_groups,
                    false,
                    1,
                    found->ahead,
                    false,
                    found->piece_tiles};
}

std::optional<UnitTiling> serial_tiling(const MatvecShape& shape, std::uint32_t columns) {
  const auto* const found = std::ranges::find_if(kSerials, [&](const Serial& each) {
    return is_for(each, shape) && columns >= each.from && columns <= each.to &&
           shape.groups * kGroupWeights >= each.least_inputs;
  });
  if (found == std::end(kSerials) && columns <= kSplitColumns) return std::nullopt;
  UnitTiling tiling = found == std::end(kSerials) ? kOtherSerial : found->tiling;
  tiling.columns = columns;
  return tiling;
}

// The choice for cases that the table does not have.
UnitTiling usual_split(const MatvecShape& shape, std::uint32_t columns, bool in_chain) {
  const Kind kind = kind_of(shape.type);
  const bool halves = kind == kHalves, bytes = kind == kBytes, plain = kind == kPlainNibbles;
  const std::uint32_t segments = unit_segments(shape).count;
  const std::uint32_t stages = shape.groups * kGroupWeights / kUnitStageWeights;
  UnitTiling tiling;
  tiling.columns = columns;
  tiling.step_groups = halves ? 2 : 4;
  tiling.subgroups = segments >= 4 ? segments : 4 / segments * segments;
  if (columns > 8) {
    // Two blocks of a subgroup share each x. With long rows that must leave enough subgroups.
    const bool plenty = segments <= 4 || stages >= 64;
    tiling.column_tiles = halves && columns > 16 && segments <= 8 ? 4 : 2;
    tiling.row_blocks = plenty && !halves ? 2 : 1;
    return tiling;
  }
  const bool little_to_unpack = halves || bytes || (plain && segments <= 4);
  tiling.row_blocks = little_to_unpack ? 2 : 1;
  if (!in_chain) return tiling;
  // The first weights are loaded before the preceding link is over.
  const Part part = part_of(shape);
  if (part == Part::kGateUp) {
    // Many segments already give many subgroups, and so do the many rows of a matrix with few segments
    // (bench/history/kernels.md, for a gemma-3 and a Qwen2.5-32B).
    const bool one_column_of_nibbles = (kind & kOtherNibbles) != 0 && columns == 1;
    tiling.row_blocks = one_column_of_nibbles && segments != 4 ? 4 : 2;
    tiling.step_groups = plain ? 4 : one_column_of_nibbles && segments < 4 ? 1 : 2;
    tiling.ahead = 2;
  } else if (halves || bytes) {
    tiling.ahead = 1;
    if (bytes) tiling.row_blocks = 1;
  } else if (part != Part::kLogits) {
    // Two blocks of rows of a subgroup are faster if a segment has at least three stages (measured for phi-4 and a
    // Qwen2.5-32B). They are also faster if a workgroup fills a processor and there are more blocks than processors
    // (a Llama-3.1-8B).
    const bool fill_processors = segments == kMostSubgroups && unit_blocks(shape) > kProcessors;
    const bool two_blocks = part == Part::kOut && (kind & kOtherNibbles) != 0 && columns == 1 &&
                            (unit_segments(shape).stages >= 3 || fill_processors);
    tiling.row_blocks = two_blocks ? 2 : 1;
    if (!two_blocks && (plain || shape.groups <= 256)) tiling.step_groups = 8;
    tiling.ahead = 2;
  }
  return tiling;
}

}  // namespace

UnitTiling unit_tiling(const MatvecShape& shape, std::uint32_t columns, bool in_chain) {
  if (!in_chain) {
    if (const std::optional<UnitTiling> pieces = tiling_by_pieces(shape, columns)) return *pieces;
  }
  if (const std::optional<UnitTiling> serial = serial_tiling(shape, columns)) return *serial;
  UnitTiling tiling = usual_split(shape, columns, in_chain);
  const std::uint32_t segments = unit_segments(shape).count;
  const auto* const found = std::ranges::find_if(kSplits, [&](const Split& each) {
    return is_for(each, shape) && (each.chained == Chained::kYes) == in_chain &&
           columns >= each.from && columns <= each.to &&
           (each.segments == 0 || each.segments == segments);
  });
  if (found == std::end(kSplits)) return tiling;
  tiling.row_blocks = found->row_blocks;
  tiling.column_tiles = found->column_tiles;
  tiling.step_groups = found->step_groups;
  tiling.ahead = found->ahead;
  tiling.piece_tiles = found->piece_tiles;
  if (segments >= 4)
    tiling.subgroups = segments * std::clamp(kMostSubgroups / segments, 1U, found->row_sets);
  return tiling;
}

}  // namespace bulkhead::gpu::kernels
