// xIELU (Huang and Schlag 2024, arXiv 2411.13010), laid out for the next product:
//
//   x > 0:   positive * x^2 + beta * x
//   x <= 0:  negative * (exp(min(x, least)) - 1 - x) + beta * x
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(XieluPush)
  uint64_t in_address;   // [column][in_stride]
  uint64_t out_address;  // [column][out_stride], by store_input
  uint64_t parameters;
  uint width;
  uint in_stride;
  uint out_stride;
  uint padded_width;
  float positive;
  float negative;
  float beta;
  float least;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(XieluConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kForm, form, 0u)  // InputForm of the result
CONSTANTS_END

// Returns exp(x) - 1 - x. Near 0, where the difference would lose its bits, it is the sum of the series.
float curve(float x) {
  precise float far = exp(x) - 1.0 - x;
  precise float series = 1.0 / 40320.0;
  series = fma(series, x, 1.0 / 5040.0);
  series = fma(series, x, 1.0 / 720.0);
  series = fma(series, x, 1.0 / 120.0);
  series = fma(series, x, 1.0 / 24.0);
  series = fma(series, x, 1.0 / 6.0);
  series = fma(series, x, 0.5);
  series = series * x * x;
  return x > -0.5 ? series : far;
}

float xielu(float x) {
  float bent = min(x, push.least);
  precise float below = push.negative * (curve(bent) + (bent - x));
  precise float above = push.positive * x * x;
  precise float result = fma(push.beta, x, x > 0.0 ? above : below);
  return result;
}

void apply() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  if (!chain_wait()) return;
  Floats values = Floats(push.in_address + uint64_t(column) * push.in_stride * 4u);
  for (uint k = gl_LocalInvocationID.x; k < push.padded_width; k += kInvocations) {
    float made = k < push.width ? xielu(values.v[k]) : 0.0;
    store_input(push.out_address, column, push.out_stride, k, made, kForm);
  }
}

void main() {
  apply();
  chain_arrive();
}
