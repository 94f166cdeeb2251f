// What both kernels that read rows of an embedding matrix do besides: embed.comp, for a matrix in planes, and
// embed_units.comp, for one that is packed for matrix units.
layout(push_constant, std430) uniform Push {
#include "fields/embed_push.glsl"
} push;

#include "constants/embed.glsl"

const float kInputShrink = kForm == kInputUnits ? 0.125 : 1.0;  // epilogue.glsl

// Sets the counters of the chain that begins behind this kernel to zero. All invocations call it first.
void clear_chain() {
  if (gl_WorkGroupID.x != 0u || gl_WorkGroupID.y != 0u || push.chain_links == 0u) return;
  for (uint link = gl_LocalInvocationIndex; link < push.chain_links; link += kInvocations) {
    WordsOut(push.chain_counts + link * 128u).v[0] = 0u;
  }
  if (gl_LocalInvocationIndex == 0u) WordsOut(push.chain_failed).v[0] = 0u;
}

uint token_of(uint column) {
  uvec4 entry = ColumnsRef(push.parameters + 64u).v[column];
  return entry.w == 0u ? entry.x : Words(push.chosen).v[(entry.w - 1u) * 2u];
}

// Stores entry k of a column's row. Behind the row's end, an input has zeros.
void store_entry(uint column, uint k, float weight) {
  precise float value = k < push.width ? weight * push.scale : 0.0;
  if (k < push.width) FloatsOut(push.out_address + uint64_t(column) * push.stride * 4u).v[k] = value;
  if (push.gain != 0ul) {
    precise float input_value = k < push.width ? value * Floats(push.gain).v[k] * kInputShrink : 0.0;
    store_input(push.input_address, column, push.input_stride, k, input_value, kForm);
  }
}
