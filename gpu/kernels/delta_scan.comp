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
// In Kimi Delta Attention (kChannelRule; Kimi team 2025, arXiv 2510.26692) each entry of a head's keys has its own
// decay, which the kernel channel_decays has computed.
//
// A workgroup computes some values of a head of one sequence, with kParts lanes for each value, for all of the
// sequence's columns in order; the state stays in registers from column to column. So it makes no difference how
// positions are divided into steps.
//
// With only a few workgroups, a processor of the device has nothing else to do while a workgroup waits for memory, and
// each workgroup waits at each column. So a wide step has two dispatches of this kernel. The first one takes the long
// runs, unless a step has more than kFew of them. Its workgroups load the inputs of kTogether columns at the same time,
// which takes more registers. The second one takes all other runs. Both compute the same bits.
//
// The order of additions over keys: a lane takes four neighbours each time, kParts * 4 apart, and adds its four sums
// as (x + y) + (z + w); then lanes are added by halving distances.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#include "delta.glsl"
#include "chain.glsl"
#include "softplus.glsl"
#include "values/long_run.glsl"

const uint kQuads = kSize / 4u;                             // of keys
const uint kOwnQuads = (kQuads + kParts - 1u) / kParts;     // per lane
const bool kEven = kOwnQuads * kParts == kQuads;

layout(buffer_reference, std430, buffer_reference_align = 16) buffer QuadsOut { vec4 v[]; };

// What an invocation reads of a column: its value, its part of a key and a query, and its head's rows.
struct Lane {
  uint head, key_head, value_at, part;
};
struct Scalars {
  float value, beta, alpha;  // beta: not with kSumRule; alpha: not with kChannelRule
};

uint64_t convolved_at(uint column) { return push.convolved + uint64_t(column) * (kChannels * 4u); }

bool has_quad(Lane lane, uint i) { return kEven || i * kParts + lane.part < kQuads; }

vec4 key_quad(Lane lane, uint column, uint i) {
  Vec4s quads = Vec4s(convolved_at(column) + (kKAt + lane.key_head * kSize) * 4u);
  return has_quad(lane, i) ? quads.v[i * kParts + lane.part] : vec4(0.0);
}

vec4 query_quad(Lane lane, uint column, uint i) {
  Vec4s quads = Vec4s(convolved_at(column) + (kQAt + lane.key_head * kSize) * 4u);
  return has_quad(lane, i) ? quads.v[i * kParts + lane.part] : vec4(0.0);
}

// What stands behind a column's channels and gates.
Floats rows_at(uint column) {
  return Floats(push.mixed + (uint64_t(column) * push.mixed_stride + kChannels + kValueWidth) * 4u);
}

Scalars scalars_of(Lane lane, uint column) {
  Scalars made;
  made.value = Floats(convolved_at(column) + (kVAt + lane.head * kValueSize) * 4u).v[lane.value_at];
  Floats rows = rows_at(column);
  made.beta = 0.0;
  made.alpha = 0.0;
  if (kRule != kSumRule) made.beta = rows.v[(kRule == kChannelRule ? kValueHeads * kSize : 0u) + lane.head];
  if (kRule != kChannelRule) made.alpha = rows.v[kRule == kDeltaRule ? kValueHeads + lane.head : lane.head];
  return made;
}

// With kChannelRule: the decays of the entries of a quad of keys.
vec4 decay_quad(Lane lane, uint column, uint i) {
  Floats rows = rows_at(column);
  uint at = lane.head * kSize + (i * kParts + lane.part) * 4u;
  if (!has_quad(lane, i)) return vec4(0.0);
  return vec4(rows.v[at], rows.v[at + 1u], rows.v[at + 2u], rows.v[at + 3u]);
}

// Returns whether the dispatch that loads kTogether columns at the same time takes this run. Long runs precede others.
bool taken_together(uint index, Run run) {
  bool few = run_count() <= kFew || run_at(kFew).columns < kLongRun;
  return few && index < kFew && run.columns >= kLongRun;
}

float sum_of_parts(vec4 sums) {
  precise float sum = (sums.x + sums.y) + (sums.z + sums.w);
  [[unroll]] for (uint distance = kParts / 2u; distance > 0u; distance /= 2u) {
    sum = sum + subgroupShuffleXor(sum, distance);
  }
  return sum;
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
  if (taken_together(index, run) != (kTogether > 1u)) return;

  uint id = gl_SubgroupID * kLanes + gl_SubgroupInvocationID;
  uint part = id % kParts;
  uint head = gl_WorkGroupID.y;
  uint value_at = gl_WorkGroupID.z * (kInvocations / kParts) + id / kParts;
  bool there = value_at < kValueSize;
  if (!there) value_at = 0u;  // lanes work together; the results of these lanes are not used
  uint key_head = kNeighbours != 0u ? head / (kValueHeads / kKeyHeads) : head % kKeyHeads;
  Lane lane = Lane(head, key_head, value_at, part);
  uint64_t row_at = ((uint64_t(head) * kValueSize + value_at) * kQuads + part) * 16u;

  vec4 state[kOwnQuads];
  [[unroll]] for (uint i = 0; i < kOwnQuads; i++) {
    state[i] = vec4(0.0);
    if (!run.fresh && has_quad(lane, i)) {
      state[i] = QuadsOut(slot_at(run.from) + row_at).v[i * kParts];
    }
  }
  float rate = 0.0, bias = 0.0;
  if (kRule != kChannelRule) {
    rate = Floats(push.weights).v[head];
    bias = Floats(push.bias).v[head];
  }

  // Until here the kernel reads nothing that this step writes: the step before left the state. The kernel before reads
  // the convolution's inputs that keep_inputs() overwrites.
  if (!chain_wait()) return;
  if (run.saved_after != 0u) keep_inputs(run, run.saved_after, run.saved);
  // `to` comes last, because it may be the slot from which the others are made.
  for (uint columns = run.columns; columns >= run.sure; columns--) keep_inputs(run, columns, slot_after(run, columns));

  for (uint t = 0; t < run.columns; t += kTogether) {
    vec4 keys[kTogether * kOwnQuads], queries[kTogether * kOwnQuads];
    Scalars loaded[kTogether];
    if (kTogether > 1u) {
      [[unroll]] for (uint c = 0; c < kTogether; c++) {
        uint column = run.first + min(t + c, run.columns - 1u);
        loaded[c] = scalars_of(lane, column);
        [[unroll]] for (uint i = 0; i < kOwnQuads; i++) {
          keys[c * kOwnQuads + i] = key_quad(lane, column, i);
          queries[c * kOwnQuads + i] = query_quad(lane, column, i);
        }
      }
    }
    [[unroll]] for (uint c = 0; c < kTogether; c++) {
      if (kTogether > 1u && t + c >= run.columns) break;
      uint column = run.first + t + c;
      Scalars own = loaded[c];
      if (kTogether == 1u) own = scalars_of(lane, column);
      precise float beta = 0.0;
      if (kRule != kSumRule) beta = 1.0 / (1.0 + exp(-own.beta));
      precise float biased = own.alpha + bias;
      precise float pace = softplus(biased);
      precise float grown = rate * pace;
      precise float decay = exp(grown);

      vec4 k[kOwnQuads], q[kOwnQuads];
      precise vec4 sums = vec4(0.0);
      [[unroll]] for (uint i = 0; i < kOwnQuads; i++) {
        k[i] = keys[c * kOwnQuads + i];
        q[i] = queries[c * kOwnQuads + i];
        if (kTogether == 1u) {
          k[i] = key_quad(lane, column, i);
          q[i] = query_quad(lane, column, i);
        }
        precise vec4 decayed = state[i] * decay;
        if (kRule == kChannelRule) decayed = state[i] * decay_quad(lane, column, i);
        state[i] = decayed;
        if (kRule != kSumRule) sums = fma(decayed, k[i], sums);
      }
      precise float learnt = own.value * pace;
      if (kRule != kSumRule) {
        precise float known = sum_of_parts(sums);
        precise float missing = own.value - known;
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
      uint done = t + c + 1u;
      if (there && done == run.saved_after) {
        [[unroll]] for (uint i = 0; i < kOwnQuads; i++) {
          if (has_quad(lane, i)) QuadsOut(slot_at(run.saved) + row_at).v[i * kParts] = state[i];
        }
      }
      if (there && done >= run.sure) {
        uint64_t slot = slot_at(slot_after(run, done));
        [[unroll]] for (uint i = 0; i < kOwnQuads; i++) {
          if (has_quad(lane, i)) QuadsOut(slot + row_at).v[i * kParts] = state[i];
        }
      }
    }
  }
}

void main() {
  scan();
  chain_arrive();
}
