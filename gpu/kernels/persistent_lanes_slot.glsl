// A slot of persistent_step.glsl: products by a subgroup's lanes (lanes_product.glsl).
#undef BULKHEAD_TYPE_CONSTANT
#define BULKHEAD_TYPE_CONSTANT 30 + SLOT * 4
#include "weights.glsl"
layout(constant_id = 31 + SLOT * 4) const uint kRows = 1;
layout(constant_id = 32 + SLOT * 4) const uint kMatrixRows = 1;  // kGated: two for each row
#include "lanes_product.glsl"
layout(constant_id = 33 + SLOT * 4) const uint kUsed = 0;

// All invocations; false: leave.
bool run_product(uint phases, uint count) {
  uint block_rows = kSubgroups / SPLIT * kRows;
  uint block_count = (push.written_rows + block_rows - 1u) / block_rows;
  // The first weights are asked for before the others' results are waited for.
  if (gl_WorkGroupID.x < block_count) product_begin(gl_WorkGroupID.x);
  if (!wait_for(phases)) return false;
  if (SCALING == kScaledHere) sum_stream_squares(FusedRef(push.fused), count);
  uint room = 0u;
  for (uint block = gl_WorkGroupID.x; block < block_count; block += step.workgroups) {
    if (block != gl_WorkGroupID.x) product_begin(block);
    product_end(0u, block, room);
    room = kRoom - room;
  }
  return true;
}
