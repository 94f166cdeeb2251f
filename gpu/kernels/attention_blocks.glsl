// Functions for both kernels of attention by matrix units (attention_units.comp, attention_tiles.comp). They say
// which columns belong together and what they see, and divide a block of positions among a subgroup's lanes.
//
// The includer has unit_fragments.glsl, attention_state.glsl and `push`.
#ifdef BULKHEAD_EMULATED_UNITS
#define EACH dont_unroll  // a CPU's compiler is slow enough
#else
#define any_lane subgroupAny
#define all_lanes subgroupAll
#define EACH unroll
#endif

const uint kBlockPositions = 64;

uvec4 column_entry(uint column) { return ColumnsRef(push.parameters + 64u).v[column]; }
// Returns whether the column after `column` belongs to the same sequence. A sequence's columns are neighbours, at
// rising positions.
bool are_neighbours(uint column, uint count) {
  return column + 1u < count && column_entry(column).z == column_entry(column + 1u).z;
}
bool has_neighbour(uint column, uint count) {
  return are_neighbours(column, count) || (column != 0u && are_neighbours(column - 1u, count));
}

uint halves_of(vec2 two) { return packFloat2x16(f16vec2(clamp(two, -65504.0, 65504.0))); }

float from_lane_float(float value, uint lane) { return uintBitsToFloat(from_lane(floatBitsToUint(value), lane)); }

// Returns whether a column sees a position. `seen` is the number of positions up to and including the column's own.
// Without a window, the column sees every position before `seen`. With a window, the column sees the last kWindow
// positions before `seen`.
bool sees(uint position, uint seen) { return position < seen && (kWindow == 0u || position + kWindow >= seen); }

// Returns how many positions a split of a column has; `seen` is as in sees(). With a window, the positions that a
// column sees may begin and end within a split, so positions that would fill kMaximumSplits - 1 splits may lie in
// kMaximumSplits. The function adds 16 positions because a subgroup may compute several columns together, of which the
// last lies at most 15 positions behind the first.
uint size_of_splits(uint seen) {
  if (kWindow == 0u) return split_size(seen);
  uint positions = min(seen, kWindow) + 16u, size = kMinimumSplit;
  while (size * (kMaximumSplits - 1u) < positions) size *= 2u;
  return size;
}

// Return the first position of the block, and of the page, that holds the first position that a column sees.
uint first_block(uint seen) { return kWindow == 0u ? 0u : (seen - min(seen, kWindow)) & ~(kBlockPositions - 1u); }
uint first_page(uint seen) { return kWindow == 0u ? 0u : (seen - min(seen, kWindow)) & ~(kPageTokens - 1u); }

// first_page() of the first of the columns that are computed together. The page table's entries before it may name
// pages of other sequences, so no lane may load these.
uint stored_from = 0u;

// Returns the first position of the 16 from which a lane loads. If `position` is not before `end`, these are the 16
// positions that include the last visible one, because no lane may load positions beyond them. Nor may a lane load
// positions before stored_from.
uint tile_start(uint position, uint end) {
  uint tile = min(position, (end - 1u) & ~15u);
  return kWindow == 0u ? tile : max(tile, stored_from);
}
