// The adjusted outputs of a step: the number of these outputs and a 0, then a row for each output, then a mask for each
// output. The host writes all of it to memory that it maps, while the device computes the step.
#include "values/adjusted_row.glsl"
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer AdjustedRowRef {
#include "fields/adjusted_row.glsl"
};

uint adjusted_rows(uint64_t adjustments) { return Words(adjustments).v[0]; }
AdjustedRowRef adjusted_row(uint64_t adjustments, uint index) {
  return AdjustedRowRef(adjustments + kAdjustedRowsOffset + uint64_t(index) * kAdjustedRowBytes);
}
