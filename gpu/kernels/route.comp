// A router's logits: rows of floats times the columns of the residual stream, normalised or (kNorms 0) as they are.
// They are computed in float32 throughout, so that neither the rounding of an input nor a device's matrix units change
// the choice of experts.
//
// A subgroup computes a row for kColumns columns. The order of additions: quads of entries are distributed to
// kNormParts parts of kLanes quads in turn, as in norm_scale.glsl, and the squares are summed in the same way: so the
// scale is bit for bit that of the norm's own kernel. A lane's products are one chain over all parts in rising order;
// then lanes are added by halving distances. The sum is multiplied by the column's scale.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#include "norm_scale.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(RoutePush)
  uint64_t in_address;  // [column][in_stride]
  uint64_t gain;        // [width]: the norm's
  uint64_t router;      // [row][width]
  uint64_t logits;      // [column][rows]
  uint64_t scales;      // [column]: the norm's factor, for products; or 0
  uint64_t parameters;
  uint64_t bias;        // [row]: of the logits; or 0
  uint width;           // a multiple of four
  uint in_stride;
  uint rows;
  float epsilon;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(RouteConstants, 0)
CONSTANT(0, kLanes, lanes, 8u)          // subgroup size
CONSTANT(1, kSubgroups, subgroups, 1u)  // each computes a router's row
INVOCATIONS(2, kInvocations, invocations, 8u)  // kLanes * kSubgroups
CONSTANT(3, kColumns, columns, 1u)             // of a workgroup
CONSTANT(4, kManyBatch, many_batch, 1u)        // with several columns: parts whose quads a lane loads at once
CONSTANT(5, kNorms, norms, 1u)                 // 0: columns are read as they are, without gains
CONSTANTS_END

float over_lanes(float own) {
  precise float sum = own;
  [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
    sum = sum + subgroupShuffleXor(sum, distance);
  }
  return sum;
}

// A round is kNormParts parts of kLanes quads. In a step of few columns most of the time is waiting for memory: so a
// lane loads the quads of a whole round at once (kBatch), and the weights of the first rounds before it waits for
// other kernels. In a step of many columns some subgroups compute while others wait, and registers are scarce.
const uint kRoundQuads = kNormParts * kLanes;
const uint kBatch = kColumns == 1u ? kNormParts : kManyBatch;  // parts
const uint kEarlyRounds = kColumns == 1u ? 3u : 0u;

// The lane's sums of products.
float products[kColumns];
float squares[kColumns * kNormParts];

// Loads the lane's quads of a batch, whose first quad is `first`.
void load_batch(Vec4s from, uint first, uint last_quad, out vec4 own[kBatch]) {
  [[unroll]] for (uint part = 0; part < kBatch; part++) {
    own[part] = from.v[min(first + part * kLanes + gl_SubgroupInvocationID, last_quad)];
  }
}

// Adds a batch to the sums. The batch begins at part `part0` of its round. Quads past the last one are not added.
void add_batch(uint first, uint part0, uint column0, uint count, vec4 weights[kBatch]) {
  uint quads = push.width / 4u;
  vec4 gains[kBatch];
  if (kNorms != 0u) load_batch(Vec4s(push.gain), first, quads - 1u, gains);
  [[unroll]] for (uint c = 0; c < kColumns; c++) {
    vec4 x[kBatch];
    uint column = min(column0 + c, count - 1u);
    load_batch(Vec4s(push.in_address + uint64_t(column) * push.in_stride * 4u), first, quads - 1u, x);
    precise float product = products[c];
    [[unroll]] for (uint part = 0; part < kBatch; part++) {
      if (first + part * kLanes + gl_SubgroupInvocationID < quads) {
        precise float square = squares[c * kNormParts + part0 + part];
        [[unroll]] for (uint i = 0; i < 4; i++) {
          square = fma(x[part][i], x[part][i], square);
          precise float normed = x[part][i] * gains[part][i];
          product = fma(weights[part][i], kNorms != 0u ? normed : x[part][i], product);
        }
        squares[c * kNormParts + part0 + part] = square;
      }
    }
    products[c] = product;
  }
}

void make_logits() {
  uint column0 = gl_WorkGroupID.x * kColumns;
  uint row = gl_WorkGroupID.y * kSubgroups + gl_SubgroupID;
  uint lane = gl_SubgroupInvocationID;
  uint quads = push.width / 4u;
  Vec4s weights = Vec4s(push.router + uint64_t(min(row, push.rows - 1u)) * push.width * 4u);
  vec4 early[kEarlyRounds + 1u][kBatch];
  [[unroll]] for (uint r = 0; r < kEarlyRounds; r++) load_batch(weights, r * kRoundQuads, quads - 1u, early[r]);
  uint count = Words(push.parameters).v[0];
  if (!chain_wait()) return;
  if (column0 >= count || row >= push.rows) return;
  [[unroll]] for (uint c = 0; c < kColumns; c++) products[c] = 0.0;
  [[unroll]] for (uint i = 0; i < kColumns * kNormParts; i++) squares[i] = 0.0;
  [[unroll]] for (uint r = 0; r < kEarlyRounds; r++) {
    if (r * kRoundQuads < quads) add_batch(r * kRoundQuads, 0u, column0, count, early[r]);
  }
  for (uint round = kEarlyRounds * kRoundQuads; round < quads; round += kRoundQuads) {
    [[unroll]] for (uint part = 0; part < kNormParts; part += kBatch) {
      vec4 own[kBatch];
      load_batch(weights, round + part * kLanes, quads - 1u, own);
      add_batch(round + part * kLanes, part, column0, count, own);
    }
  }
  [[unroll]] for (uint c = 0; c < kColumns; c++) {
    precise float all = over_lanes(squares[c * kNormParts]);
    [[unroll]] for (uint part = 1; part < kNormParts; part++) all = all + over_lanes(squares[c * kNormParts + part]);
    float scale = kNorms != 0u ? norm_scale(all, push.width, push.epsilon) : 1.0;
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
