// Variants of attention without matrix units (attention.comp).
#include <algorithm>

#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/attention_constants.hpp"
#include "gpu/kernels/attention_rows.hpp"

namespace bulkhead::gpu::kernels {
std::uint32_t lanes_shared_bytes(const Mapping& mapping, const AttentionShape& shape,
                                 AttentionMode mode, std::uint32_t heads, std::uint32_t subgroups) {
  const std::uint32_t padded = shape.head_padded();
  const std::uint32_t parts = std::max(mapping.lanes / (padded / 8), 1U);
  const std::uint32_t of_part = (heads + parts - 1) / parts;
  const std::uint32_t weights = subgroups * (mapping.lanes + 1) *
                                ((heads + of_part - 1) / of_part) *
                                (of_part > 2 ? (of_part + 3) / 4 * 4 : of_part);
  const std::uint32_t shares = heads * mapping.attention_splits * 3;
  const std::uint32_t sinks = shape.sinks ? heads : 0;
  const std::uint32_t q = heads * padded * (mode == AttentionMode::kWhole ? subgroups : 1);
  return 4 * (q + weights + sinks + std::max(subgroups * partial_floats(shape), shares) + 4);
}

namespace {

// Returns the query heads that share a KV head and one workgroup. On a CPU it is faster to load keys
// once for several heads: llvmpipe takes 0.5 to 0.6 of the time with four heads of 256 to 576
// entries. Heads of this length share a workgroup only in wide steps, such as those of a prompt. A
// narrow step may need more workgroups to keep all cores busy.
std::uint32_t heads_together(const Mapping& mapping, const AttentionShape& shape,
                             std::uint32_t columns) {
  constexpr std::uint32_t kNarrow = 8, kLongHead = 128, kEntries = 256;
  if (!mapping.rows) return 1;
  const std::uint32_t group = shape.heads / shape.kv_heads;
  const bool any_length = columns > kNarrow && shape.head_padded() > kLongHead;
  for (const std::uint32_t heads : {4U, 3U, 2U}) {
    if (group % heads == 0 && (any_length || heads * shape.head_padded() <= kEntries)) return heads;
  }
  return 1;
}

// Returns the query heads of a KV head for which a GPU's subgroup loads keys and values once.
std::uint32_t heads_sharing(const Mapping& mapping, const AttentionShape& shape, AttentionMode mode,
                            std::uint32_t most, std::uint32_t subgroups) {
  const std::uint32_t group = shape.heads / shape.kv_heads;
  std::uint32_t heads = 1;
  for (std::uint32_t parts = 1; parts <= group; ++parts) {
    heads = (group + parts - 1) / parts;
    if (heads > std::min(most, mapping.attention_heads)) continue;
    if (lanes_shared_bytes(mapping, shape, mode, heads, subgroups) <= mapping.shared_bytes) break;
  }
  return heads;
}

// Returns the most heads of latents that a subgroup computes together. A lane keeps the results of its entries, several
// eights of each row, for all of these heads.
std::uint32_t most_latent_heads(const Mapping& mapping, const AttentionShape& shape,
                                std::uint32_t most_eights) {
  const std::uint32_t eights = (shape.head_padded() / 8 + mapping.lanes - 1) / mapping.lanes;
  return std::max(most_eights / eights, 1U);
}

std::uint32_t head_groups(const AttentionShape& shape, std::uint32_t heads) {
  return (shape.heads / shape.kv_heads + heads - 1) / heads * shape.kv_heads;
}

// Chooses for kWhole, where each subgroup computes a group of a column's heads. An H200's processor computes eight
// subgroups at once if they have eight loads ahead, and sixteen if they have four loads ahead and at most four heads
// (bench-attention --lanes --all).
void share_whole_columns(const Mapping& mapping, const AttentionShape& shape, std::uint32_t columns,
                         LanesAttention& sharing) {
  constexpr std::uint32_t kSubgroups = 4, kFewHeads = 4, kAtOnce = 132 * 8;
  const auto heads = [&](std::uint32_t most) {
    return heads_sharing(mapping, shape, sharing.mode, std::min(most, mapping.attention_heads),
                         kSubgroups);
  };
  if (shape.value_entries != 0) {
    sharing.heads = heads(most_latent_heads(mapping, shape, 8));
    if (sharing.heads > 1) sharing.subgroups = kSubgroups;
    return;
  }
  const auto all_at_once = [&] { return columns * head_groups(shape, sharing.heads) <= kAtOnce; };
  sharing.heads = heads(kFewHeads);
  if (!all_at_once()) sharing.heads = heads(mapping.attention_heads);
  if (sharing.heads > 1) sharing.subgroups = kSubgroups;
  if (sharing.heads <= kFewHeads && !all_at_once()) sharing.ahead = std::min(sharing.ahead, 4U);
}

}  // namespace

LanesAttention lanes_attention(const Mapping& mapping, const AttentionShape& shape,
                               AttentionMode mode, std::uint32_t columns) {
  LanesAttention sharing;
  sharing.mode = mode;
  sharing.ahead = mapping.attention_ahead;
  switch (mode) {
    case AttentionMode::kWhole:
      if (!mapping.rows) share_whole_columns(mapping, shape, columns, sharing);
      break;
    case AttentionMode::kPartial:
    case AttentionMode::kTiles:  // matrix units'
    case AttentionMode::kSpreadTiles:
      break;
    case AttentionMode::kTogether:
      sharing.subgroups = kTogetherSubgroups;
      sharing.heads = heads_sharing(mapping, shape, mode, 4, sharing.subgroups);
      break;
    case AttentionMode::kSpread:
      // Measured on an H200: a subgroup that computes more than four heads of 128 entries has too few registers.
      sharing.subgroups = 4;
      sharing.heads = heads_sharing(
          mapping, shape, mode,
          shape.value_entries == 0 ? 4 : most_latent_heads(mapping, shape, columns <= 4 ? 8 : 12),
          sharing.subgroups);
      // Steps of 33 to 64 columns with so few groups are faster with four loads ahead, because more subgroups then fit
      // on a processor.
      if (columns > 32 && columns * head_groups(shape, sharing.heads) <= 512 && sharing.heads == 4)
        sharing.ahead = std::min(sharing.ahead, 4U);
      break;
  }
  // Rows of latents are long, so each load ahead takes many registers. The widest steps are faster with two loads
  // ahead, because more subgroups then fit on a processor.
  if (shape.value_entries != 0) sharing.ahead = std::min(sharing.ahead, columns <= 512 ? 4U : 2U);
  return sharing;
}

AttentionVariant lanes_variant(const Mapping& mapping, const AttentionShape& shape,
                               const AttentionRange& range, const LanesAttention& sharing,
                               std::uint32_t columns, std::uint32_t context, bool near_first) {
  const std::uint32_t heads = heads_together(mapping, shape, columns);
  const std::uint32_t groups = head_groups(shape, sharing.heads);
  std::uint32_t spread_from = 0;
  AttentionVariant variant;
  variant.x = columns;
  variant.y = shape.heads / heads;
  switch (sharing.mode) {
    case AttentionMode::kWhole:
      if (sharing.heads == 1) break;
      variant.x = (columns + sharing.subgroups - 1) / sharing.subgroups;
      variant.y = groups;
      break;
    case AttentionMode::kPartial:
      variant.z = mapping.attention_splits;
      break;
    case AttentionMode::kTiles:
    case AttentionMode::kSpreadTiles:
      break;
    case AttentionMode::kTogether:
      spread_from = together_positions(mapping);
      // With a few columns there are fewer heads than a large device has processors.
      if (context > spread_from) variant.z = std::clamp(128 / (columns * shape.heads), 1U, 4U);
      break;
    case AttentionMode::kSpread:
      variant.y = groups;
      variant.z = std::clamp(
          4096 / (columns * variant.y * sharing.subgroups), 1U,
          (attention_splits(mapping, context) + sharing.subgroups - 1) / sharing.subgroups);
      break;
  }
  AttentionConstants constants;
  constants.mode = static_cast<std::uint32_t>(sharing.mode);
  constants.invocations = mapping.lanes * sharing.subgroups;
  constants.near_first = near_first ? 1 : 0;
  constants.share = sharing.heads;
  constants.ahead = sharing.ahead;
  constants.spread_from = spread_from;
  variant.spec = {
      "attention", mapping.rows ? spirv::attention_rows : spirv::attention, sizeof(AttentionPush),
      constants_of(lanes_constants(mapping), head_constants(shape),
                   split_constants(mapping, shape, heads), constants, rules_constants(shape),
                   range_constants(range), page_constants(shape)),
      mapping.required_subgroup};
  variant.spec.slow_to_compile = true;
  return variant;
}

}  // namespace bulkhead::gpu::kernels
