// The recurrence of gated delta nets (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464): a head's state S, a matrix
// of keys times values, decays, learns that its key k has the value v, and is read with q:
//
//   S = decay * S;  S = S + k (beta * (v - S^T k))^T;  out = S^T q
//   decay = exp(rate * softplus(alpha + bias)), beta = sigmoid(its row)
//
// Mamba-2's state (kSumRule; Dao and Gu 2024, arXiv 2405.21060) learns whatever comes:
//
//   S = decay * S;  S = S + k (softplus(alpha + bias) * v)^T;  out = S^T q
//
// A workgroup computes some values of a head of one sequence, with kParts lanes for each value, for all of the
// sequence's columns in order; the state stays in registers from column to column. So it makes no difference how
// positions are divided into steps.
//
// The order of additions over keys: a lane takes four neighbours each time, kParts * 4 apart, and adds its four sums
// as (x + y) + (z + w); then lanes are added by halving distances.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#include "delta.glsl"
#include "chain.glsl"

const uint kQuads = kSize / 4u;                             // of keys
const uint kOwnQuads = (kQuads + kParts - 1u) / kParts;     // per lane
const bool kEven = kOwnQuads * kParts == kQuads;

layout(buffer_reference, std430, buffer_reference_align = 16) buffer QuadsOut { vec4 v[]; };

float sum_of_parts(vec4 sums) {
  precise float sum = (sums.x + sums.y) + (sums.z + sums.w);
  [[unroll]] for (uint distance = kParts / 2u; distance > 0u; distance /= 2u) {
    sum = sum + subgroupShuffleXor(sum, distance);
  }
  return sum;
}

float softplus(float x) {
  precise float grown = log(1.0 + exp(x));
  return x > 20.0 ? x : grown;
}

// Writes the convolution's inputs at the last kTaps - 1 positions before column `columns` of the run to a slot. The
// slot may be the one with which the run began: rows are written in rising order, and each depends only on itself or
// later rows.
void keep_inputs(Run run, uint columns, uint slot) {
  uint invocations = kInvocations * gl_NumWorkGroups.y * gl_NumWorkGroups.z;
  uint group = gl_WorkGroupID.y * gl_NumWorkGroups.z + gl_WorkGroupID.z;
  for (uint channel = group * kInvocations + gl_LocalInvocationID.x; channel < kChannels; channel += invocations) {
    for (uint row = 0; row < kTaps - 1u; row++) {
      uint at = row + columns;  // counted from the oldest row that the run began with
      float value;
      if (at < kTaps - 1u) {
        value = input_before(run, at, channel);
      } else {
        uint column = run.first + at - (kTaps - 1u);
        value = Floats(push.mixed + (uint64_t(column) * push.mixed_stride + channel) * 4u).v[0];
      }
      FloatsOut(slot_at(slot) + (kStateFloats + row * kChannels + channel) * 4ul).v[0] = value;
    }
  }
}

void scan() {
  uint index = gl_WorkGroupID.x;
  if (index >= run_count()) return;
  Run run = run_at(index);

  uint id = gl_SubgroupID * kLanes + gl_SubgroupInvocationID;
  uint part = id % kParts;
  uint head = gl_WorkGroupID.y;
  uint value_at = gl_WorkGroupID.z * (kInvocations / kParts) + id / kParts;
  bool there = value_at < kValueSize;
  if (!there) value_at = 0u;  // lanes work together; the results of these lanes are not used
  uint key_head = kNeighbours != 0u ? head / (kValueHeads / kKeyHeads) : head % kKeyHeads;
  uint64_t row_at = ((uint64_t(head) * kValueSize + value_at) * kQuads + part) * 16u;

  vec4 state[kOwnQuads];
  [[unroll]] for (uint i = 0; i < kOwnQuads; i++) {
    state[i] = vec4(0.0);
    if (!run.fresh && (kEven || i * kParts + part < kQuads)) {
      state[i] = QuadsOut(slot_at(run.from) + row_at).v[i * kParts];
    }
  }
  float rate = Floats(push.weights).v[head], bias = Floats(push.bias).v[head];

  // Until here the kernel reads nothing that this step writes: the step before left the state. The kernel before reads
  // the convolution's inputs that keep_inputs() overwrites.
  if (!chain_wait()) return;
  if (run.saved_after != 0u) keep_inputs(run, run.saved_after, run.saved);
  keep_inputs(run, run.columns, run.to);

  for (uint t = 0; t < run.columns; t++) {
    uint column = run.first + t;
    uint64_t mixed = push.mixed + uint64_t(column) * push.mixed_stride * 4u;
    uint64_t convolved = push.convolved + uint64_t(column) * (kChannels * 4u);
    Vec4s q_quads = Vec4s(convolved + (kQAt + key_head * kSize) * 4u);
    Vec4s k_quads = Vec4s(convolved + (kKAt + key_head * kSize) * 4u);
    float value = Floats(convolved + (kVAt + head * kValueSize) * 4u).v[value_at];
    Floats rows = Floats(mixed + (kChannels + kValueWidth) * 4u);
    precise float beta = 0.0;
    if (kRule == kDeltaRule) beta = 1.0 / (1.0 + exp(-rows.v[head]));
    precise float biased = rows.v[kRule == kDeltaRule ? kValueHeads + head : head] + bias;
    precise float pace = softplus(biased);
    precise float grown = rate * pace;
    precise float decay = exp(grown);

    vec4 k[kOwnQuads], q[kOwnQuads];
    precise vec4 sums = vec4(0.0);
    [[unroll]] for (uint i = 0; i < kOwnQuads; i++) {
      bool own = kEven || i * kParts + part < kQuads;
      k[i] = own ? k_quads.v[i * kParts + part] : vec4(0.0);
      q[i] = own ? q_quads.v[i * kParts + part] : vec4(0.0);
      precise vec4 decayed = state[i] * decay;
      state[i] = decayed;
      if (kRule == kDeltaRule) sums = fma(decayed, k[i], sums);
    }
    precise float learnt = value * pace;
    if (kRule == kDeltaRule) {
      precise float known = sum_of_parts(sums);
      precise float missing = value - known;
      learnt = missing * beta;
    }
    sums = vec4(0.0);
    [[unroll]] for (uint i = 0; i < kOwnQuads; i++) {
      precise vec4 grown_state = fma(k[i], vec4(learnt), state[i]);
      state[i] = grown_state;
      sums = fma(grown_state, q[i], sums);
    }
    precise float made = sum_of_parts(sums);
    if (there && part == 0u) {
      FloatsOut(push.read + (uint64_t(column) * kValueWidth + head * kValueSize) * 4u).v[value_at] = made;
    }
    if (there && t + 1u == run.saved_after) {
      [[unroll]] for (uint i = 0; i < kOwnQuads; i++) {
        if (kEven || i * kParts + part < kQuads) QuadsOut(slot_at(run.saved) + row_at).v[i * kParts] = state[i];
      }
    }
  }
  if (!there) return;
  [[unroll]] for (uint i = 0; i < kOwnQuads; i++) {
    if (kEven || i * kParts + part < kQuads) QuadsOut(slot_at(run.to) + row_at).v[i * kParts] = state[i];
  }
}

void main() {
  scan();
  chain_arrive();
}
