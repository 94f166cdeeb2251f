// Products of experts' matrices, which are stored one after another as one matrix. With BULKHEAD_EXPERTS a product's
// kernel computes a tile of columns that use the same expert (choose.comp) instead of neighbouring columns. The order
// of additions is the kernel's own, so a result's bits don't depend on the other columns of its tile.
//
// With kSlices there are no routes: every column uses all kSlices matrices, for example one for each attention head.
// A pair is then column * kSlices + matrix.
//
// Results are stored by pairs: [column][expert chosen]. The input is, too, or the experts of a column share it
// (kShare).
#ifdef BULKHEAD_EXPERTS
#include "constants/experts.glsl"

uint tile_expert, tile_first, tile_count, tile_pair;
#ifdef BULKHEAD_CHOOSES_HERE
#include "choose_here.glsl"
#endif

// Returns false if there is no such tile.
bool take_tile() {
  if (kSlices != 0u) {
    uint count = Words(push.parameters).v[push.count_word];
    tile_expert = gl_WorkGroupID.x % kSlices;
    tile_first = gl_WorkGroupID.x / kSlices * kSliceColumns;
    tile_count = min(kSliceColumns, count - min(tile_first, count));
    tile_pair = tile_first * kSlices + tile_expert;
    return tile_count != 0u;
  }
#ifdef BULKHEAD_CHOOSES_HERE
  if (kChooses != kByRoute) {
    tile_expert = choose_here();
    tile_first = tile_pair = gl_WorkGroupID.x;
    tile_count = min(Words(push.parameters).v[push.count_word], 1u);
    return tile_count != 0u;
  }
#endif
  uint tiles = Words(push.tiles).v[0];
  uvec4 tile = Quads(push.tiles).v[1u + gl_WorkGroupID.x];
  tile_expert = tile.x;
  tile_first = tile.y;
  tile_count = tile.z;
  tile_pair = tile.w;
  return gl_WorkGroupID.x < tiles;
}

// Returns the pair at a place of the tile; beyond its end, the last pair.
uint pair_at(uint place) {
  if (kColumns == 1u) return tile_pair;
  if (kSlices != 0u) return (tile_first + min(place, tile_count - 1u)) * kSlices + tile_expert;
  return Words(push.list).v[tile_first + min(place, tile_count - 1u)];
}

#define INPUT_COLUMN(pair) ((pair) / kShare)
#define BIAS_ROW(row) (tile_expert * push.rows + (row))
#else
#define INPUT_COLUMN(column) (column)
#define BIAS_ROW(row) (row)
#endif
