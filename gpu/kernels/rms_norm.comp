// Root-mean-square norm of each column (or of the columns that a list names), times a gain, in the layout that the
// matrix-vector kernels read, or added to the present value. kCopy: the column unchanged, in that layout; kTimes:
// times the gain's first entry. kAdded may make the next product's input from the sum, as a product's own epilogue
// does (epilogue.glsl, kAdd).
//
// The order of additions: with kLanes == 0, an invocation's entries k, k + kInvocations, ... in rising order, then
// invocations by halving distances through shared memory; otherwise that of norm_scale.glsl, with a subgroup for each
// of its parts.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#include "norm_scale.glsl"

layout(push_constant, std430) uniform Push {
#include "fields/norm_push.glsl"
#include "fields/rms_norm_push.glsl"
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(RmsNormConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)  // a power of two
CONSTANT(1, kForm, form, 0u)                   // InputForm of the result
CONSTANT(2, kLanes, lanes, 0u)                 // > 0: the workgroup has kNormParts subgroups of this size
CONSTANT(3, kMakes, makes, 0u)                 // NormMakes
CONSTANT(4, kNextForm, next_form, 0u)          // InputForm of the next product's input
CONSTANTS_END

#include "values/norm_makes.glsl"

const uint kKept = 4;  // quads
const float kNextShrink = kNextForm == kInputUnits ? 0.125 : 1.0;  // epilogue.glsl
const bool kTakesGain = kMakes == kNormed || kMakes == kAdded;

float next_gain_of(uint k) {
  return kMakes == kAdded && push.next_gain != 0ul && k < push.width ? Floats(push.next_gain).v[k] : 0.0;
}
// Returns the float to which kAdded adds entry k of result `index`.
float held_of(uint index, uint k) {
  return kMakes == kAdded && k < push.width ? FloatsOut(push.out_address + uint64_t(index) * push.out_stride * 4u).v[k]
                                            : 0.0;
}

float result_of(float value, float scale, float gain) {
  precise float made = kMakes == kCopy    ? value
                       : kMakes == kTimes ? value * Floats(push.gain).v[0]
                                          : value * scale * gain;
  return made;
}

// Stores entry k of result `index`, computed from the value, its column's scale, its gain, next_gain_of(k) and
// held_of(index, k).
void store_result(uint index, uint k, float value, float scale, float gain, float next_gain, float held) {
  float made = result_of(value, scale, gain);
  if (kMakes == kAdded) {
    precise float total = 0.0;
    if (k < push.width) {
      total = held + made;
      FloatsOut(push.out_address + uint64_t(index) * push.out_stride * 4u).v[k] = total;
    }
    if (push.next_gain != 0ul) {
      precise float input_value = total * next_gain * kNextShrink;
      store_input(push.next_input, index, push.next_stride, k, input_value, kNextForm);
    }
  } else {
    store_input(push.out_address, index, push.out_stride, k, made, kForm);
  }
}

shared float sums[kInvocations];

uint part_of(uint column) { return column * gl_NumWorkGroups.y + gl_WorkGroupID.y; }

// Returns whether four entries can be loaded and stored at once.
bool has_whole_quads() {
  uint all = uint(push.in_address) | uint(push.gain) | uint(push.out_address) | uint(push.next_gain) |
             uint(push.next_input) |
             (push.width | push.padded_width | push.in_stride | push.out_stride | push.next_stride) * 4u;
  return (all & 15u) == 0u;
}
// Loads four entries from k on. Entries beyond the last one get meaningless values.
vec4 load_quad(uint64_t base, uint k, bool whole) {
  if (whole) return Vec4s(base).v[min(k, push.width - 4u) / 4u];
  vec4 loaded;
  [[unroll]] for (uint i = 0; i < 4; i++) loaded[i] = Floats(base).v[min(k + i, push.width - 1u)];
  return loaded;
}

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Vec4sOut { vec4 v[]; };

// Stores four entries as store_result() stores one. `gain`, `next_gain` and `held` belong to these entries.
void store_quad(uint index, uint k, vec4 values, float scale, vec4 gain, vec4 next_gain, vec4 held, bool whole) {
  if (!whole) {
    [[unroll]] for (uint i = 0; i < 4; i++) {
      if (k + i < push.padded_width) store_result(index, k + i, values[i], scale, gain[i], next_gain[i], held[i]);
    }
    return;
  }
  vec4 made;
  [[unroll]] for (uint i = 0; i < 4; i++) made[i] = result_of(values[i], scale, gain[i]);
  if (kMakes != kAdded) {
    store_input_quad(push.out_address, index, push.out_stride, k, made, kForm);
    return;
  }
  precise vec4 total = vec4(0.0);
  if (k < push.width) {
    total = held + made;
    Vec4sOut(push.out_address + uint64_t(index) * push.out_stride * 4u).v[k / 4u] = total;
  }
  if (push.next_gain == 0ul) return;
  precise vec4 input_values = total * next_gain * kNextShrink;
  store_input_quad(push.next_input, index, push.next_stride, k, input_values, kNextForm);
}

// The norm for GPUs. Most of its time is waiting for memory, so it loads everything at once, without conditions
// between the loads. It loads what doesn't depend on other kernels before it waits for them.
void norm_by_subgroups() {
  uint index = gl_WorkGroupID.x;
  uint part = gl_SubgroupID;
  uint column = index;
  if (push.list != 0ul) {
    if (index >= Words(push.parameters).v[push.count_word]) return;
    column = Words(push.list).v[index];
  } else if (index != 0u && index >= Words(push.parameters).v[push.count_word]) {
    return;  // the first column always exists, so it need not wait for the count
  }
  bool whole = has_whole_quads();
  bool feeds = kMakes == kAdded && push.next_gain != 0ul;
  uint first = (part * kLanes + gl_SubgroupInvocationID) * 4u;
  const uint kStride = kNormParts * kLanes * 4u;
  vec4 kept[kKept], gains[kKept], next_gains[kKept], held[kKept];
  [[unroll]] for (uint i = 0; i < kKept; i++) {
    uint k = first + i * kStride;
    gains[i] = kTakesGain ? load_quad(push.gain, k, whole) : vec4(0.0);
    next_gains[i] = feeds ? load_quad(push.next_gain, k, whole) : vec4(0.0);
  }
  if (!chain_wait()) return;
  column = part_of(column);
  index = part_of(index);
  uint64_t values = push.in_address + uint64_t(column) * push.in_stride * 4u;
  uint64_t sums_at = push.out_address + uint64_t(index) * push.out_stride * 4u;
  [[unroll]] for (uint i = 0; i < kKept; i++) {
    uint k = first + i * kStride;
    kept[i] = load_quad(values, k, whole);
    held[i] = kMakes == kAdded ? load_quad(sums_at, k, whole) : vec4(0.0);
  }
  precise float sum = 0.0;
  [[unroll]] for (uint i = 0; i < kKept; i++) {
    [[unroll]] for (uint e = 0; e < 4; e++) {
      if (first + i * kStride + e >= push.width) kept[i][e] = gains[i][e] = next_gains[i][e] = 0.0;
      sum = fma(kept[i][e], kept[i][e], sum);
    }
  }
  for (uint k = first + kKept * kStride; k < push.width; k += kStride) {
    vec4 more = load_quad(values, k, whole);
    [[unroll]] for (uint e = 0; e < 4; e++) {
      float value = k + e < push.width ? more[e] : 0.0;
      sum = fma(value, value, sum);
    }
  }
  [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
    sum = sum + subgroupShuffleXor(sum, distance);
  }
  if (gl_SubgroupInvocationID == 0u) sums[part] = sum;
  barrier();
  precise float all = sums[0];
  [[unroll]] for (uint s = 1; s < kNormParts; s++) all = all + sums[s];
  float scale = norm_scale(all, push.width, push.epsilon);
  if (kMakes == kScaleOnly) {
    if (gl_SubgroupInvocationID == 0u && part == 0u) FloatsOut(push.out_address).v[index] = scale;
    return;
  }

  [[unroll]] for (uint i = 0; i < kKept; i++) {
    uint k = first + i * kStride;
    if (k < push.padded_width) store_quad(index, k, kept[i], scale, gains[i], next_gains[i], held[i], whole);
  }
  for (uint quad = first + kKept * kStride; quad < push.padded_width; quad += kStride) {
    [[unroll]] for (uint i = 0; i < 4; i++) {
      uint k = quad + i;
      bool there = k < push.width;
      float gain = there && kTakesGain ? Floats(push.gain).v[k] : 0.0;
      if (k < push.padded_width) {
        store_result(index, k, there ? Floats(values).v[k] : 0.0, scale, gain, next_gain_of(k), held_of(index, k));
      }
    }
  }
}

void make_norm() {
  if (kLanes != 0u) {
    norm_by_subgroups();
    return;
  }
  uint index = gl_WorkGroupID.x;
  if (index >= Words(push.parameters).v[push.count_word]) return;
  uint column = index;
  if (push.list != 0ul) column = Words(push.list).v[index];
  if (!chain_wait()) return;
  column = part_of(column);
  index = part_of(index);
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

  for (uint k = id; k < push.padded_width; k += kInvocations) {
    bool there = k < push.width;
    float gain = there && kTakesGain ? Floats(push.gain).v[k] : 0.0;
    store_result(index, k, there ? values.v[k] : 0.0, scale, gain, next_gain_of(k), held_of(index, k));
  }
}

void main() {
  make_norm();
  chain_arrive();
}
