// Root-mean-square norm of each column (or of the columns that a list names), times a gain, laid out as the
// matrix-vector kernels read it.
//
// Order of additions: an invocation's entries k, k + kInvocations, ... in rising order; then, kLanes == 0, invocations by
// halving distances through shared memory; else the lanes of a subgroup by halving distances and the subgroups in order,
// with one barrier and the first kKept entries of an invocation kept in registers: for GPUs, where it is all waiting.
#version 460
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  uint64_t in_address;   // [column][in_stride]
  uint64_t gain;         // [width]
  uint64_t out_address;  // [column][out_stride], by input_index
  uint64_t parameters;
  uint64_t list;         // 0, or which column each result is made of
  uint width;
  uint in_stride;
  uint out_stride;
  uint padded_width;     // zeros up to here
  uint count_word;
  float epsilon;
} push;

layout(constant_id = 0) const uint kInvocations = 8;  // a power of two
layout(constant_id = 1) const uint kPermuted = 0;
layout(constant_id = 2) const uint kLanes = 0;
layout(local_size_x_id = 0) in;

const uint kKept = 8;
const uint kDivisor = kLanes == 0u ? kInvocations : kLanes;
const uint kSubgroups = kInvocations / kDivisor;

shared float sums[kInvocations];

void norm_by_subgroups() {
  uint index = gl_WorkGroupID.x;
  uint id = gl_SubgroupID * kLanes + gl_SubgroupInvocationID;
  uint column = index;
  if (push.list != 0ul) {
    if (index >= Words(push.parameters).v[push.count_word]) return;
    column = Words(push.list).v[index];
  } else if (index != 0u && index >= Words(push.parameters).v[push.count_word]) {
    return;  // the first column is always there: it need not wait for the count
  }
  Floats values = Floats(push.in_address + uint64_t(column) * push.in_stride * 4u);
  Floats gains = Floats(push.gain);
  float kept[kKept], kept_gains[kKept];
  [[unroll]] for (uint i = 0; i < kKept; i++) {
    uint k = i * kInvocations + id;
    kept[i] = k < push.width ? values.v[k] : 0.0;
  }
  [[unroll]] for (uint i = 0; i < kKept; i++) {
    uint k = i * kInvocations + id;
    kept_gains[i] = k < push.width ? gains.v[k] : 0.0;
  }
  precise float sum = 0.0;
  [[unroll]] for (uint i = 0; i < kKept; i++) sum = fma(kept[i], kept[i], sum);
  for (uint k = kKept * kInvocations + id; k < push.width; k += kInvocations) {
    float value = values.v[k];
    sum = fma(value, value, sum);
  }
  [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
    sum = sum + subgroupShuffleXor(sum, distance);
  }
  if (gl_SubgroupInvocationID == 0u) sums[gl_SubgroupID] = sum;
  barrier();
  precise float all = sums[0];
  [[unroll]] for (uint s = 1; s < kSubgroups; s++) all = all + sums[s];
  precise float mean = all / float(push.width);
  precise float scale = 1.0 / sqrt(mean + push.epsilon);

  FloatsOut result = FloatsOut(push.out_address + uint64_t(index) * push.out_stride * 4u);
  [[unroll]] for (uint i = 0; i < kKept; i++) {
    uint k = i * kInvocations + id;
    precise float value = kept[i] * scale * kept_gains[i];
    if (k < push.padded_width) result.v[input_index(k, kPermuted != 0u)] = value;
  }
  for (uint k = kKept * kInvocations + id; k < push.padded_width; k += kInvocations) {
    precise float value = 0.0;
    if (k < push.width) value = values.v[k] * scale * gains.v[k];
    result.v[input_index(k, kPermuted != 0u)] = value;
  }
}

void main() {
  if (kLanes != 0u) {
    norm_by_subgroups();
    return;
  }
  uint index = gl_WorkGroupID.x;
  if (index >= Words(push.parameters).v[push.count_word]) return;
  uint column = index;
  if (push.list != 0ul) column = Words(push.list).v[index];
  Floats values = Floats(push.in_address + uint64_t(column) * push.in_stride * 4u);
  uint id = gl_LocalInvocationID.x;

  precise float sum = 0.0;
  for (uint k = id; k < push.width; k += kInvocations) {
    float value = values.v[k];
    sum = fma(value, value, sum);
  }
  sums[id] = sum;
  barrier();
  [[unroll]] for (uint distance = kInvocations / 2u; distance > 0u; distance /= 2u) {
    if (id < distance) {
      precise float total = sums[id] + sums[id + distance];
      sums[id] = total;
    }
    barrier();
  }
  precise float mean = sums[0] / float(push.width);
  precise float scale = 1.0 / sqrt(mean + push.epsilon);

  FloatsOut result = FloatsOut(push.out_address + uint64_t(index) * push.out_stride * 4u);
  for (uint k = id; k < push.padded_width; k += kInvocations) {
    precise float value = 0.0;
    if (k < push.width) value = values.v[k] * scale * Floats(push.gain).v[k];
    result.v[input_index(k, kPermuted != 0u)] = value;
  }
}
