// Constants that the variants of attention (kernels.cpp, attention_units.cpp) share.
#pragma once

#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/kernels.hpp"

namespace bulkhead::gpu::kernels {

HeadConstants head_constants(const AttentionShape& shape);
PageConstants page_constants(const AttentionShape& shape);
AttentionLanesConstants lanes_constants(const Mapping& mapping);
AttentionRulesConstants rules_constants(const AttentionShape& shape);
AttentionSplitConstants split_constants(const Mapping& mapping, const AttentionShape& shape,
                                        std::uint32_t heads);
AttentionRangeConstants range_constants(const AttentionRange& range);
// Returns whether matrix units can compute this attention.
bool units_attend(const Mapping& mapping, const AttentionShape& shape);
// Returns in how many splits the positions of a column, or of a tile's columns, may lie when matrix units compute their
// attention. `seen` is positions_seen(). A window may begin and end within a split.
std::uint32_t units_splits(const Mapping& mapping, const AttentionShape& shape, std::uint32_t seen);

// Returns how many positions a kTogether workgroup of kTogetherSubgroups subgroups computes at once; each subgroup
// takes one split. Columns that see more positions may be shared by several workgroups.
std::uint32_t together_positions(const Mapping& mapping);

// In steps of up to this many columns, a workgroup computes a column's head, or some of its heads (kTogether).
constexpr std::uint32_t kTogetherColumns = 16;

// How attention without matrix units divides its work (attention.comp). Every choice gives the same bits.
struct LanesAttention {
  AttentionMode mode = AttentionMode::kWhole;
  std::uint32_t subgroups = 1;  // in a workgroup
  std::uint32_t heads = 1;      // query heads of a KV head that a subgroup computes together
  std::uint32_t ahead = 1;      // loads of one kind that a lane issues at once
};
// Returns the bytes of shared memory that a GPU's workgroup of attention.comp takes, or a little more.
std::uint32_t lanes_shared_bytes(const Mapping& mapping, const AttentionShape& shape,
                                 AttentionMode mode, std::uint32_t heads, std::uint32_t subgroups);
// Returns the best division in this mode for steps of `columns` columns.
LanesAttention lanes_attention(const Mapping& mapping, const AttentionShape& shape,
                               AttentionMode mode, std::uint32_t columns);
AttentionVariant lanes_variant(const Mapping& mapping, const AttentionShape& shape,
                               const AttentionRange& range, const LanesAttention& sharing,
                               std::uint32_t columns, std::uint32_t context, bool near_first);

// How attention by matrix units divides its work (attention_units.comp). Every choice gives the same bits.
struct UnitAttention {
  AttentionMode mode = AttentionMode::kWhole;
  std::uint32_t subgroups = 1;  // in a workgroup
  std::uint32_t heads = 1;      // query heads of a KV head that a subgroup computes together
  std::uint32_t heads_together =
      1;  // kTogether: heads in a workgroup, for columns that see few positions
  std::uint32_t entry_parts =
      1;  // kTogether: workgroups that share the entries of their heads' results
  std::uint32_t query_tiles = 1;  // per subgroup, each of eight queries
  std::uint32_t key_words = 32;   // key words that a lane loads at once
  std::uint32_t values_ahead =
      0;                        // tiles of 16 values that are loaded before the scores are computed
  bool early_keys = false;      // keys are loaded one block ahead
  bool through_shared = false;  // kTiles: attention_tiles.comp computes it
  bool alone = false;           // only for columns that have no neighbour
  bool spreads = true;  // kTogether: workgroups share the splits of columns that see many positions
};
// Returns the bytes of shared memory that a workgroup of attention_units.comp takes, or a little more.
std::uint32_t units_shared_bytes(const Mapping& mapping, const AttentionShape& shape,
                                 const UnitAttention& sharing);
// Returns how many groups of heads a column has for matrix units: each has one KV head and at most eight query heads.
std::uint32_t unit_attention_groups(const AttentionShape& shape);
// Returns the best division for steps of `columns` columns.
UnitAttention unit_attention(const Mapping& mapping, const AttentionShape& shape,
                             const AttentionRange& range, AttentionMode mode,
                             std::uint32_t columns);
AttentionVariant units_attention(const Mapping& mapping, const AttentionShape& shape,
                                 const AttentionRange& range, const UnitAttention& sharing,
                                 std::uint32_t columns, std::uint32_t context, bool near_first);

}  // namespace bulkhead::gpu::kernels
