// Layer norm (Ba et al. 2016, arXiv 1607.06450) of each column, or of the columns that a list names, laid out as
// products read it: (x - mean) / sqrt(mean of (x - mean)^2 + epsilon) * gain + bias, or without a bias.
//
// Order of additions: an invocation's entries k, k + kInvocations, ... in rising order, then invocations by halving
// distances.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
#include "fields/norm_push.glsl"
#include "fields/layer_norm_push.glsl"
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(LayerNormConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)  // a power of two
CONSTANT(1, kForm, form, 0u)                   // InputForm of the result
CONSTANTS_END

#include "invocation_sum.glsl"

void make_norm() {
  uint index = gl_WorkGroupID.x;
  if (index >= Words(push.parameters).v[push.count_word]) return;
  uint column = index;
  if (push.list != 0ul) column = Words(push.list).v[index];
  if (!chain_wait()) return;
  Floats values = Floats(push.in_address + uint64_t(column) * push.in_stride * 4u);
  uint id = gl_LocalInvocationID.x;
  precise float sum = 0.0;
  for (uint k = id; k < push.width; k += kInvocations) sum = sum + values.v[k];
  precise float mean = total(sum) / float(push.width);
  precise float squares = 0.0;
  for (uint k = id; k < push.width; k += kInvocations) {
    precise float apart = values.v[k] - mean;
    squares = fma(apart, apart, squares);
  }
  precise float variance = total(squares) / float(push.width);
  precise float scale = 1.0 / sqrt(variance + push.epsilon);
  for (uint k = id; k < push.padded_width; k += kInvocations) {
    precise float made = 0.0;
    if (k < push.width) {
      precise float apart = values.v[k] - mean;
      precise float bias = 0.0;
      if (push.bias != 0ul) bias = Floats(push.bias).v[k];
      made = fma(apart * scale, Floats(push.gain).v[k], bias);
    }
    store_input(push.out_address, index, push.out_stride, k, made, kForm);
  }
}

void main() {
  make_norm();
  chain_arrive();
}
