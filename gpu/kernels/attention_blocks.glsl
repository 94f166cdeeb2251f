// Functions for both kernels of attention by matrix units (attention_units.comp, attention_tiles.comp). They say
// which columns belong together, and divide a block of positions among a subgroup's lanes.
//
// The includer has unit_fragments.glsl and `push`.
#ifdef BULKHEAD_EMULATED_UNITS
#define any_lane(value) true
#define all_lanes(value) false
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

// Returns the first position of the 16 from which a lane loads. If `position` is not before `end`, these are the 16
// positions that include the last visible one, because no lane may load positions beyond them.
uint tile_start(uint position, uint end) { return min(position, (end - 1u) & ~15u); }
