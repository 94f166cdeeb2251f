// The adjusted outputs of a step: {their number, 0}, then a row for each, then masks. The host writes them while the
// step is computed, to memory that it maps.
#include "values/adjusted_row.glsl"
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer AdjustedRowRef {
#include "fields/adjusted_row.glsl"
};

uint adjusted_rows(uint64_t adjustments) { return Words(adjustments).v[0]; }
AdjustedRowRef adjusted_row(uint64_t adjustments, uint index) {
  return AdjustedRowRef(adjustments + kAdjustedRowsOffset + uint64_t(index) * kAdjustedRowBytes);
}
