// The residual stream's first values in a stage of a split model (worker/forward/split_transformer.hpp): a copy of
// rows that an earlier stage computed. It also makes the first product's input from them, as the layer before would
// have done (epilogue.glsl). A workgroup takes one column.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(StreamInPush)
  uint64_t rows;         // [column][width]
  uint64_t out_address;  // [column][stride]
  uint64_t parameters;
  uint64_t gain;         // GPUs: the first norm's gain; 0: no input is made
  uint64_t input_address;  // GPUs: the first product's input: [column][input_stride], by store_input
  // matrix units: the counters of the chain that begins behind this kernel, which sets them to zero
  uint64_t chain_counts;
  uint64_t chain_failed;
  uint width;
  uint stride;
  uint input_stride;
  uint padded_width;     // of the input
  uint chain_links;
  FIELDS_END
} push;

CONSTANTS(StreamInConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kForm, form, 0u)  // InputForm of the first product's input
CONSTANTS_END

// as in epilogue.glsl
const float kInputShrink = kForm == kInputUnits ? 0.125 : 1.0;

void main() {
  uint column = gl_WorkGroupID.x;
  uint lane = gl_LocalInvocationID.x;
  if (column == 0u) {
    for (uint link = lane; link < push.chain_links; link += kInvocations)
      WordsOut(push.chain_counts + link * 128u).v[0] = 0u;
    if (lane == 0u && push.chain_links != 0u) WordsOut(push.chain_failed).v[0] = 0u;
  }
  if (column >= Words(push.parameters).v[0]) return;
  Floats row = Floats(push.rows + uint64_t(column) * push.width * 4u);
  FloatsOut result = FloatsOut(push.out_address + uint64_t(column) * push.stride * 4u);
  for (uint k = lane; k < push.width; k += kInvocations) result.v[k] = row.v[k];
  if (push.gain == 0ul) return;
  for (uint k = lane; k < push.padded_width; k += kInvocations) {
    precise float input_value = k < push.width ? row.v[k] * Floats(push.gain).v[k] * kInputShrink : 0.0;
    store_input(push.input_address, column, push.input_stride, k, input_value, kForm);
  }
}
