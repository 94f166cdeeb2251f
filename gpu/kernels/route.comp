// A router's logits: rows of floats times the normed columns of the residual stream, in float32 throughout, so that
// neither an input's rounding nor a device's matrix units choose other experts.
//
// A subgroup makes a row for kColumns columns. Order of additions: quads of entries go round kNormParts parts of kLanes
// quads, as norm_scale.glsl tells, and the squares are summed so, too: the scale is bit for bit that of the norm's own
// kernel. A lane's products are one chain over all parts in rising order; then lanes by halving distances. The sum is
// multiplied by the column's scale.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#include "norm_scale.glsl"

layout(push_constant, std430) uniform Push {
  uint64_t in_address;   // [column][in_stride]
  uint64_t gain;         // [width]: the norm's
  uint64_t router;       // [row][width]
  uint64_t logits;       // [column][rows]
  uint64_t scales;       // [column]: what the norm comes to, for products; or 0
  uint64_t parameters;
  uint64_t bias;         // [row]: of the logits; or 0
  uint width;            // a multiple of four
  uint in_stride;
  uint rows;
  float epsilon;
  CHAIN_PUSH
} push;
#include "chain.glsl"

#include "constants/route.glsl"

float over_lanes(float own) {
  precise float sum = own;
  [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
    sum = sum + subgroupShuffleXor(sum, distance);
  }
  return sum;
}

void make_logits() {
  uint column0 = gl_WorkGroupID.x * kColumns;
  uint row = gl_WorkGroupID.y * kSubgroups + gl_SubgroupID;
  uint lane = gl_SubgroupInvocationID;
  if (!chain_wait()) return;
  uint count = Words(push.parameters).v[0];
  if (column0 >= count || row >= push.rows) return;
  Vec4s weights = Vec4s(push.router + uint64_t(row) * push.width * 4u);
  precise float products[kColumns];
  precise float squares[kColumns * kNormParts];
  [[unroll]] for (uint c = 0; c < kColumns; c++) products[c] = 0.0;
  [[unroll]] for (uint i = 0; i < kColumns * kNormParts; i++) squares[i] = 0.0;
  uint quads = push.width / 4u;
  for (uint round = 0; round < quads; round += kNormParts * kLanes) {
    [[unroll]] for (uint part = 0; part < kNormParts; part++) {
      uint quad = round + part * kLanes + lane;
      if (quad < quads) {
        vec4 weight = weights.v[quad];
        vec4 gain = Vec4s(push.gain).v[quad];
        [[unroll]] for (uint c = 0; c < kColumns; c++) {
          uint column = min(column0 + c, count - 1u);
          vec4 x = Vec4s(push.in_address + uint64_t(column) * push.in_stride * 4u).v[quad];
          precise float square = squares[c * kNormParts + part];
          precise float product = products[c];
          [[unroll]] for (uint i = 0; i < 4; i++) {
            square = fma(x[i], x[i], square);
            precise float normed = x[i] * gain[i];
            product = fma(weight[i], normed, product);
          }
          squares[c * kNormParts + part] = square;
          products[c] = product;
        }
      }
    }
  }
  [[unroll]] for (uint c = 0; c < kColumns; c++) {
    precise float all = over_lanes(squares[c * kNormParts]);
    [[unroll]] for (uint part = 1; part < kNormParts; part++) all = all + over_lanes(squares[c * kNormParts + part]);
    float scale = norm_scale(all, push.width, push.epsilon);
    precise float logit = over_lanes(products[c]) * scale;
    if (push.bias != 0ul) logit = logit + Floats(push.bias).v[row];
    if (lane == 0u && column0 + c < count) {
      FloatsOut(push.logits).v[(column0 + c) * push.rows + row] = logit;
      if (row == 0u && push.scales != 0ul) FloatsOut(push.scales).v[column0 + c] = scale;
    }
  }
}

void main() {
  make_logits();
  chain_arrive();
}
