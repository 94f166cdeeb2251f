// The work between the q, k, v products and attention, in one pass: biases, per-head norms, rotation by position, and
// the new key and value written to their page. A workgroup computes one head of one column: first the query heads,
// then the key heads, then the value heads.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#include "common.glsl"
#include "kv_layout.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(RopeKvPush)
  uint64_t qkv;     // [column][in_stride]: q heads, k heads, v heads
  uint64_t bias;    // the same order, or 0
  uint64_t q_gain;  // [kHead], or 0: no per-head norm
  uint64_t k_gain;
  uint64_t fine;    // [256][pairs] of (cos, sin): the angle of position % 256
  uint64_t coarse;  // [position / 256][pairs]
  uint64_t parameters;
  uint64_t pages;   // page tables
  uint64_t keys;
  uint64_t values;
  uint64_t q_out;   // [column][head][kHeadPadded], times q_scale
  uint in_stride;
  uint rope_pairs;  // pairs of entries that rotate
  float epsilon;
  float q_scale;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

#include "constants/rope_workgroup.glsl"
CONSTANTS(RopeConstants, 5)
CONSTANT(5, kPairing, pairing, 0u)  // 0: (2i, 2i + 1); 1: (i, i + pairs)
CONSTANT(6, kValueNorm, value_norm, 0u)  // ValueNorm
CONSTANT(7, kTemperature, temperature, 0u)  // a float's bits: factor of q at long positions; 0: none
CONSTANT(8, kTemperatureSpan, temperature_span, 1u)  // positions
CONSTANT(9, kNormLast, norm_last, 0u)  // q and k are normalised behind their rotation, not before it
CONSTANTS_END
#include "values/value_norm.glsl"

const bool kEarlyTurns = kHeadPadded / 2u <= kLanes;  // a lane has at most one pair

shared float entries[kHeadPadded];
shared float sums[kLanes];

#include "kv_write.glsl"

// Puts the head's entries with their biases into `entries`. Returns the sum of the squares of those that the lane
// loaded.
float load_entries(uint column, uint head, uint lane) {
  Floats source = Floats(push.qkv + (uint64_t(column) * push.in_stride + head * kHead) * 4u);
  precise float sum = 0.0;
  for (uint i = lane; i < kHeadPadded; i += kLanes) {
    precise float value = 0.0;
    if (i < kHead) {
      value = source.v[i];
      if (push.bias != 0ul) value = value + Floats(push.bias).v[head * kHead + i];
    }
    entries[i] = value;
    sum = fma(value, value, sum);
  }
  return sum;
}

// Returns the head's norm as a factor, from the lanes' sums of squares; 1 in models without per-head norms. All
// invocations must call this; afterwards each sees all of `entries`.
float scale_of_head(float sum, uint lane) {
  precise float scale = 1.0;
  if (push.q_gain != 0ul) {
    sums[lane] = sum;
    barrier();
    [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
      if (lane < distance) {
        precise float total = sums[lane] + sums[lane + distance];
        sums[lane] = total;
      }
      barrier();
    }
    precise float mean = sums[0] / float(kHead);
    scale = 1.0 / sqrt(mean + push.epsilon);
  } else {
    barrier();
  }
  return scale;
}

// Scales two neighbouring entries of a query head for attention, and writes them.
void write_query_pair(uint column, uint head, uint position, uint pair, float first, float second) {
  precise float q_scale = push.q_scale;
  if (kTemperature != 0u) {
    precise float grown = fma(uintBitsToFloat(kTemperature), log(float(1u + position / kTemperatureSpan)), 1.0);
    q_scale = q_scale * grown;
  }
  FloatsOut q = FloatsOut(push.q_out + (uint64_t(column) * kHeads + head) * (kHeadPadded * 4u));
  precise float a = first * q_scale;
  precise float b = second * q_scale;
  q.v[pair * 2u] = a;
  q.v[pair * 2u + 1u] = b;
}

// The operands of an entry's rotation, apart from the head's entries.
struct Turn {
  vec2 fine, coarse;
  float gain, partner_gain;
};

// Returns the entry with which entry i rotates.
uint partner_of(uint i) {
  if (kPairing == 0u) return i ^ 1u;
  return i < push.rope_pairs ? i + push.rope_pairs : i - push.rope_pairs;
}

// Loads a pair's operands. `gain` is 0 without a norm.
void load_turns(uint pair, uint position, bool turns, uint64_t gain, out Turn made[2]) {
  Vec2s fine = Vec2s(push.fine + uint64_t(position & 255u) * push.rope_pairs * 8u);
  Vec2s coarse = Vec2s(push.coarse + uint64_t(position >> 8) * push.rope_pairs * 8u);
  [[unroll]] for (uint side = 0; side < 2; side++) {
    uint i = pair * 2u + side;
    made[side] = Turn(vec2(0.0), vec2(0.0), 1.0, 1.0);
    if (gain != 0ul && i < kHead) made[side].gain = Floats(gain).v[i];
    if (!turns || i >= push.rope_pairs * 2u) continue;
    uint which = kPairing == 0u ? pair : min(i, partner_of(i));
    made[side].fine = fine.v[which];
    made[side].coarse = coarse.v[which];
    if (gain != 0ul) made[side].partner_gain = Floats(gain).v[partner_of(i)];
  }
}

void rotate() {
  uint column = gl_WorkGroupID.x;
  // The first column always exists, so it need not wait for the count. On a GPU this kernel mostly waits.
  if (column != 0u && column >= Words(push.parameters).v[0]) return;
  uvec4 info = ColumnsRef(push.parameters + 64u).v[column];
  uint head = gl_WorkGroupID.y;
  uint lane = gl_LocalInvocationID.x;
  bool is_query = head < kHeads;
  bool is_value = head >= kHeads + kKvHeads;
  bool normed = push.q_gain != 0ul && (!is_value || kValueNorm != kNoValueNorm);
  bool last_normed = normed && !is_value && kNormLast != 0u, first_normed = normed && !last_normed;
  uint64_t gain = !normed || is_value ? 0ul : is_query ? push.q_gain : push.k_gain;
  uint position = info.y;
  uint page = 0;
  if (!is_query) page = Words(push.pages).v[info.z + position / kPageTokens];
  // A link of a chain loads what other kernels don't write before it waits for them.
  Turn early[2];
  if (kEarlyTurns) load_turns(lane, position, !is_value, gain, early);
  if (!chain_wait()) return;

  float sum = load_entries(column, head, lane);
  float scale = scale_of_head(sum, lane);

  uint slot = position % kPageTokens;
  uint kv_head = is_value ? head - kHeads - kKvHeads : head - kHeads;
  uint64_t key_base = push.keys + page_at(page) + kv_head * kHeadBytes;
  uint64_t value_base = push.values + page_at(page) + kv_head * kHeadBytes;

  // Two neighbouring entries at a time, which are one word of float16.
  for (uint pair = lane; pair < kHeadPadded / 2u; pair += kLanes) {
    Turn turns[2] = early;
    if (!kEarlyTurns) load_turns(pair, position, !is_value, gain, turns);
    float made[2];
    [[unroll]] for (uint side = 0; side < 2; side++) {
      uint i = pair * 2u + side;
      precise float value = entries[i];
      if (first_normed && i < kHead) value = is_value ? value * scale : value * scale * turns[side].gain;
      if (!is_value && i < push.rope_pairs * 2u) {
        bool second = kPairing == 0u ? side == 1u : i >= push.rope_pairs;
        precise float other = entries[partner_of(i)];
        if (first_normed) other = other * scale * turns[side].partner_gain;
        vec2 f = turns[side].fine, c = turns[side].coarse;
        precise float cosine = fma(c.x, f.x, -(c.y * f.y));
        precise float sine = fma(c.y, f.x, c.x * f.y);
        value = second ? fma(other, sine, value * cosine) : fma(-other, sine, value * cosine);
      }
      // A rotation leaves the sum of squares as it is.
      if (last_normed && i < kHead) value = value * scale * turns[side].gain;
      made[side] = value;
    }
    if (is_query) {
      write_query_pair(column, head, position, pair, made[0], made[1]);
    } else {
      write_pair(is_value ? value_base : key_base, slot, is_value, pair, made[0], made[1]);
    }
  }
  if (kKvFormat == kKvQ8 && !is_query) {
    barrier();
    write_bytes(is_value ? value_base : key_base, slot, is_value, lane);
  }
}

void main() {
  rotate();
  chain_arrive();
}
