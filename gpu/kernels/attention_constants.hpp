// What the sources of attention's variants (kernels.cpp, attention_units.cpp) share.
#pragma once

#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/kernels.hpp"

namespace bulkhead::gpu::kernels {

HeadConstants head_constants(const AttentionShape& shape);
AttentionLanesConstants lanes_constants(const Mapping& mapping);
AttentionRulesConstants rules_constants(const AttentionShape& shape);
AttentionSplitConstants split_constants(const Mapping& mapping, const AttentionShape& shape,
                                        std::uint32_t heads);
AttentionRangeConstants range_constants(const AttentionRange& range);
// Whether matrix units can compute this attention.
bool units_attend(const Mapping& mapping, const AttentionShape& shape);

// What the subgroups of a workgroup of kTogether make at once, a split each.
std::uint32_t together_positions(const Mapping& mapping);

// How attention by matrix units is shared out (attention_units.comp); bit for bit the same.
struct UnitAttention {
  AttentionMode mode = AttentionMode::kWhole;
  std::uint32_t subgroups = 1;       // of a workgroup
  std::uint32_t heads = 1;           // of a KV head that a subgroup takes together
  std::uint32_t heads_together = 1;  // kTogether: of a workgroup, for columns that see little
  std::uint32_t query_tiles = 1;     // of a subgroup: eight queries each
  std::uint32_t key_words = 32;      // that a lane asks for at once
  std::uint32_t values_ahead = 0;    // tiles of 16 values that are asked for before scores are made
  bool early_keys = false;           // keys are asked for a block ahead
  bool through_shared = false;       // kTiles: attention_tiles.comp's way
  bool alone = false;                // kWhole: of columns that kTiles leaves out
};
// What is best for steps of so many columns.
UnitAttention unit_attention(const Mapping& mapping, const AttentionShape& shape,
                             AttentionMode mode, std::uint32_t columns);
AttentionVariant units_attention(const Mapping& mapping, const AttentionShape& shape,
                                 const AttentionRange& range, const UnitAttention& sharing,
                                 std::uint32_t columns, std::uint32_t context, bool near_first);

}  // namespace bulkhead::gpu::kernels
