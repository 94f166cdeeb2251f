// One product of a step on a GPU: a workgroup computes a block of rows of a tile of columns (lanes_product.glsl).
//
// The first tile doesn't wait for the count of columns, because there is at least one column.
#version 460
#define BULKHEAD_WIDE_LOADS
#include "common.glsl"
#include "weights.glsl"
#include "matvec_push.glsl"

CONSTANTS(MatvecLanesConstants, 14)
CONSTANT(14, kLanes, lanes, 32u)  // subgroup size
CONSTANT(15, kSplit, split, 1u)   // subgroups that share a row
CONSTANT(16, kSubgroups, subgroups, 4u)
INVOCATIONS(17, kInvocations, invocations, 32u)  // kLanes * kSubgroups
CONSTANT(18, kScaling, scaling, 0u)              // Scaling
CONSTANTS_END

#define EPILOGUE kEpilogue
#define SCALING kScaling
#define SPLIT kSplit
#define OUT_FORM kOutForm
#define INPUT_FORM kInputLanes
#define SQUARES_EACH_BLOCK true
#include "page_tokens.glsl"
#include "epilogue.glsl"
#include "norm_scale.glsl"

shared float partials[kSubgroups * kMatrixRows * kColumns];
shared float norm_parts[kNormParts * kColumns];

#include "lanes_product.glsl"

void main() {
#ifdef BULKHEAD_EXPERTS
  const uint column0 = 0u;  // first column of the tile
  if (!take_tile()) return;
#else
  uint column0 = gl_WorkGroupID.x * kColumns;
  if (column0 != 0u && column0 >= Words(push.parameters).v[push.count_word]) return;
#endif
  product_begin(gl_WorkGroupID.y);
  product_end(column0, gl_WorkGroupID.y, 0u);
}
