// Variants of attention by matrix units (attention_units.comp).
#include "gpu/kernels/attention_units.hpp"

#include <algorithm>
#include <bit>

#include "gpu/kernels/attention_constants.hpp"
#include "gpu/kernels/attention_tiles.hpp"

namespace bulkhead::gpu::kernels {
namespace {

constexpr std::uint32_t kTileQueries = 8;

// Query heads of a KV head that a subgroup computes together: as many as possible, in parts of equal size.
std::uint32_t heads_sharing(const AttentionShape& shape, std::uint32_t most) {
  const std::uint32_t group = shape.heads / shape.kv_heads;
  const std::uint32_t parts = (group + most - 1) / most;
  return (group + parts - 1) / parts;
}

std::uint32_t groups_of(const AttentionShape& shape, std::uint32_t sharing) {
  return (shape.heads / shape.kv_heads + sharing - 1) / sharing * shape.kv_heads;
}

// How many tiles of keys a lane loads at once: for each head size that takes about as many registers. The number
// divides the four tiles of a block.
std::uint32_t keys_ahead(const AttentionShape& shape, std::uint32_t words) {
  const std::uint32_t cell_words = shape.kv == KvFormat::kQ8 ? 3 : 4;  // attention_cells.glsl
  const std::uint32_t tile_words = (shape.head_padded() + 31) / 32 * 2 * cell_words;
  return std::bit_floor(std::clamp(words / tile_words, 1U, 4U));
}

// Returns how many times four tiles of 16 entries a head's results are.
std::uint32_t result_sets(const AttentionShape& shape) {
  return (shape.head_padded() + 63) / 64;
}

// Returns whether workgroups load a block's keys and values through shared memory. A subgroup then needs two sums for
// each of its results, and has enough registers only if heads are short.
bool through_shared_memory(const Mapping& mapping, const AttentionShape& shape) {
  constexpr std::uint32_t kPositions = 64;
  const std::uint32_t keys = (shape.head_padded() + 31) / 32 * 32 * kPositions * 2;
  const std::uint32_t values = result_sets(shape) * 64 * kPositions * 2;
  return shape.head_padded() <= 128 && keys + values <= mapping.shared_bytes;
}

// Returns the columns of a portion (kPortion of attention_tiles.comp): half of the columns of a tile, so that in most
// portions one tile begins, or none.
std::uint32_t tiles_portion(const UnitAttention& sharing) {
  const std::uint32_t columns =
      sharing.query_tiles * kTileQueries / sharing.heads * sharing.subgroups;
  return std::clamp(columns / 2, 1U, 8U);
}

KernelSpec spec_of(const Mapping& mapping, const AttentionShape& shape, const AttentionRange& range,
                   const UnitAttention& sharing, bool near_first) {
  AttentionConstants constants;
  constants.mode = static_cast<std::uint32_t>(sharing.mode);
  constants.invocations = mapping.lanes * sharing.subgroups;
  constants.near_first = near_first ? 1 : 0;
  constants.share = sharing.heads;
  constants.ahead = keys_ahead(shape, sharing.key_words);
  if (sharing.mode == AttentionMode::kTogether)
    constants.spread_from = sharing.spreads ? together_positions(mapping) : kNoPosition;
  else
    constants.spread_from = 0;
  if (sharing.through_shared) {
    AttentionTilesConstants tiles;
    tiles.portion = tiles_portion(sharing);
    KernelSpec spec{
        "attention", spirv::attention_tiles, sizeof(AttentionPush),
        constants_of(lanes_constants(mapping), head_constants(shape),
                     split_constants(mapping, shape, 1), constants, rules_constants(shape),
                     range_constants(range), tiles, page_constants(shape)),
        mapping.required_subgroup};
    spec.slow_to_compile = true;
    return spec;
  }
  AttentionUnitsConstants units;
  units.query_tiles = sharing.query_tiles;
  units.alone = sharing.alone ? 1 : 0;
  units.share_together = sharing.heads_together;
  units.entry_parts = sharing.entry_parts;
  units.values_ahead = sharing.values_ahead;
  units.early_keys = sharing.early_keys ? 1 : 0;
  KernelSpec spec{
      "attention", spirv::attention_units, sizeof(AttentionPush),
      constants_of(lanes_constants(mapping), head_constants(shape),
                   split_constants(mapping, shape, 1), constants, rules_constants(shape),
                   range_constants(range), units, page_constants(shape)),
      mapping.required_subgroup};
  spec.slow_to_compile = true;
  return spec;
}

// Figures of an H200 for all choices below: bench-attention and bench-decode.

// Returns kEntryParts for a step of `columns` columns: the number of workgroups that share the entries of one group's
// results. All workgroups of the step together are at most as many as a large device has processors.
std::uint32_t entry_parts(const Mapping& mapping, const AttentionShape& shape,
                          const UnitAttention& sharing, std::uint32_t columns) {
  constexpr std::uint32_t kMostParts = 8, kProcessors = 128;
  const std::uint32_t groups = columns * groups_of(shape, sharing.heads);
  const std::uint32_t sets = result_sets(shape);
  for (const std::uint32_t parts : {sets * 4, sets * 2, sets}) {
    // Cells of bytes are not divided.
    if (parts > sets && shape.kv == KvFormat::kQ8) continue;
    UnitAttention divided = sharing;
    divided.subgroups = kTogetherSubgroups;
    divided.heads_together = sharing.heads;
    divided.entry_parts = parts;
    if (parts <= kMostParts && groups * parts <= kProcessors &&
        units_shared_bytes(mapping, shape, divided) <= mapping.shared_bytes)
      return parts;
  }
  return 1;
}

// Returns the most heads that workgroups of kTogether have room for.
std::uint32_t heads_with_room(const Mapping& mapping, const AttentionShape& shape,
                              UnitAttention sharing) {
  sharing.heads_together = kTileQueries;
  while (sharing.heads_together > 1 &&
         units_shared_bytes(mapping, shape, sharing) > mapping.shared_bytes)
    --sharing.heads_together;
  return sharing.heads_together;
}

// Chooses for kTogether. Few columns have few workgroups, in which every subgroup should load as little as possible; in
// a chain each link waits for the slowest of them.
void share_column(const Mapping& mapping, const AttentionShape& shape, const AttentionRange& range,
                  std::uint32_t columns, UnitAttention& sharing) {
  const std::uint32_t near = together_positions(mapping);
  const bool few_positions = range.until <= near || (shape.window != 0 && shape.window <= near);
  const std::uint32_t parts = columns <= kFewAttentionColumns && few_positions
                                  ? entry_parts(mapping, shape, sharing, columns)
                                  : 1;
  if (parts > 1) {
    // All of a group's heads in one workgroup need its keys once. Its values are divided among workgroups.
    sharing.subgroups = kTogetherSubgroups;
    // A window that begins anywhere lies in one block more than it fills.
    if (shape.window != 0)
      sharing.subgroups = std::min(sharing.subgroups, (shape.window + 62) / 64 + 1);
    sharing.heads_together = sharing.heads;
    sharing.entry_parts = parts;
    sharing.spreads = false;
  } else if (columns <= kTogetherColumns) {
    sharing.subgroups = 12;  // with more, each has too few registers
    sharing.heads_together = heads_sharing(
        shape, columns <= kFewAttentionColumns ? 1 : heads_with_room(mapping, shape, sharing));
    sharing.values_ahead = shape.head_padded() <= 64 ? 2 : 0;
  } else {
    sharing.heads_together = heads_sharing(shape, heads_with_room(mapping, shape, sharing));
    sharing.key_words = 64;
    sharing.values_ahead = 2;
    sharing.spreads = false;
  }
}

}  // namespace

// As attention_units.comp declares it, with room for the largest scores of 256 heads and a few words.
std::uint32_t units_shared_bytes(const Mapping& mapping, const AttentionShape& shape,
                                 const UnitAttention& sharing) {
  constexpr std::uint32_t kOther = 256, kItemNumbers = 8;
  const bool together = sharing.mode == AttentionMode::kTogether;
  const bool spreads =
      sharing.mode == AttentionMode::kSpread || sharing.mode == AttentionMode::kSpreadTiles;
  if (!together && !spreads) return kOther * 4;
  const std::uint32_t queries =
      sharing.query_tiles * ((shape.head_padded() + 31) / 32) * kTileQueries * 16;
  std::uint32_t room = sharing.heads * mapping.attention_splits * 3;
  if (together) {
    const std::uint32_t entries = sharing.entry_parts == 1
                                      ? shape.head_padded()
                                      : result_sets(shape) * 64 / sharing.entry_parts;
    room = std::max(room, sharing.subgroups * sharing.heads_together * (entries + kItemNumbers));
  }
  return (queries + room + kOther) * 4;
}

std::uint32_t unit_attention_groups(const AttentionShape& shape) {
  return groups_of(shape, heads_sharing(shape, kTileQueries));
}

// The kernels compute neighbouring columns together, and expect that a column sees no position after its own.
bool units_attend(const Mapping& mapping, const AttentionShape& shape) {
  return mapping.units && shape.kv != KvFormat::kF32 && shape.head_padded() <= 256 &&
         shape.value_entries == 0 && !shape.both_ways;
}

std::uint32_t units_splits(const Mapping& mapping, const AttentionShape& shape,
                           std::uint32_t seen) {
  const std::uint32_t cut = shape.window == 0 ? 0 : 2 * mapping.attention_split;
  return attention_splits(mapping, seen + cut);
}

AttentionVariant attention_alone(const Mapping& mapping, const AttentionShape& shape,
                                 const AttentionRange& range, std::uint32_t columns) {
  UnitAttention sharing;
  sharing.subgroups = 4;
  sharing.heads = heads_sharing(shape, kTileQueries);
  sharing.alone = true;
  const std::uint32_t groups = groups_of(shape, sharing.heads);
  if (shape.head_padded() > 128)
    return units_attention(mapping, shape, range, sharing, columns, 0, false);
  const bool few =
      columns * groups <= 528;  // half as many as a device of 132 processors computes at once
  if (few) {
    sharing.mode = AttentionMode::kTogether;
    sharing.subgroups = 2;
    sharing.heads_together = sharing.heads;
    sharing.spreads = false;
  }
  sharing.values_ahead = few ? 2 : 1;
  // With fewer loads at once, twice as many subgroups with heads of 64 entries fit on a processor.
  if (shape.head_padded() > 64 || columns * groups <= 1056) sharing.key_words = 64;
  return units_attention(mapping, shape, range, sharing, columns, 0, false);
}

UnitAttention unit_attention(const Mapping& mapping, const AttentionShape& shape,
                             const AttentionRange& range, AttentionMode mode,
                             std::uint32_t columns) {
  UnitAttention sharing;
  sharing.mode = mode;
  sharing.subgroups = 4;
  sharing.heads = heads_sharing(shape, kTileQueries);
  switch (mode) {
    case AttentionMode::kPartial:  // CPUs'
    case AttentionMode::kWhole:
      sharing.mode = AttentionMode::kWhole;
      break;
    case AttentionMode::kTogether:
      share_column(mapping, shape, range, columns, sharing);
      break;
    case AttentionMode::kSpread:
      sharing.subgroups = 8;
      sharing.key_words = shape.head_padded() <= 64 ? 32 : 64;
      break;
    case AttentionMode::kSpreadTiles:
      sharing.key_words = shape.head_padded() <= 64 ? 32 : 64;
      sharing.query_tiles = shape.head_padded() <= 128 ? 2 : 1;
      sharing.heads = heads_sharing(shape, sharing.query_tiles * kTileQueries);
      break;
    case AttentionMode::kTiles:
      sharing.query_tiles = shape.head_padded() <= 128 ? 2 : 1;
      sharing.values_ahead = 1;
      sharing.early_keys = true;
      sharing.heads = heads_sharing(shape, sharing.query_tiles * kTileQueries);
      sharing.through_shared = through_shared_memory(mapping, shape);
      // Few columns make few workgroups. With four subgroups instead of eight there are twice as many workgroups,
      // which keep more of a large device busy.
      if (sharing.through_shared && columns > 256) sharing.subgroups = 8;
      break;
  }
  return sharing;
}

AttentionVariant units_attention(const Mapping& mapping, const AttentionShape& shape,
                                 const AttentionRange& range, const UnitAttention& sharing,
                                 std::uint32_t columns, std::uint32_t context, bool near_first) {
  AttentionVariant variant;
  variant.x = columns;
  variant.y = groups_of(shape, sharing.heads);
  if (sharing.mode == AttentionMode::kTogether)
    variant.y *=
        (sharing.heads + sharing.heads_together - 1) / sharing.heads_together * sharing.entry_parts;
  const std::uint32_t splits = units_splits(mapping, shape, context);
  if (sharing.mode == AttentionMode::kWhole) {
    variant.x = (columns + sharing.subgroups - 1) / sharing.subgroups;
  } else if (sharing.through_shared) {
    const std::uint32_t portion = tiles_portion(sharing);
    variant.x = (columns + portion - 1) / portion;
    variant.z = 2;
  } else if (sharing.mode == AttentionMode::kTogether && sharing.spreads &&
             context > together_positions(mapping)) {
    // With a few columns there are fewer heads than a large device has processors.
    variant.z = std::clamp(128 / (columns * variant.y), 1U, 16U);
  } else if (sharing.mode == AttentionMode::kSpreadTiles) {
    // The workgroups of a tile's other columns end at once.
    const std::uint32_t tile = sharing.query_tiles * kTileQueries / sharing.heads;
    const std::uint32_t tiles = (columns + tile - 1) / tile * variant.y;
    variant.z = std::clamp(640 / tiles, 1U, (splits + sharing.subgroups - 1) / sharing.subgroups);
  } else if (sharing.mode == AttentionMode::kSpread) {
    variant.z = std::clamp(4096 / (columns * variant.y * sharing.subgroups), 1U,
                           (splits + sharing.subgroups - 1) / sharing.subgroups);
  }
  variant.spec = spec_of(mapping, shape, range, sharing, near_first);
  return variant;
}

}  // namespace bulkhead::gpu::kernels
