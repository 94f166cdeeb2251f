// Computes what attention over latents reads (DeepSeek-V2, arXiv 2405.04434): a column's queries, and its position's
// row of the cache. A workgroup computes one query head of a column. The last workgroup of a column computes the row.
//
//   query  the head's plain entries times its key matrix (`absorbed`), then its entries that rotate by position, all
//          times q_scale, which grows with long positions if there is a temperature
//   row    the latent's norm times its gain, then the key entries that rotate
//
// Order of additions of the norm: an invocation's entries k, k + kLanes, ... in rising order, then invocations by
// halving distances.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#include "common.glsl"
#include "kv_layout.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(RopeLatentPush)
  uint64_t q;         // [column][head][q_head]: plain entries, then kHead - kLatent entries that rotate
  uint64_t absorbed;  // [column][head][kLatent]
  uint64_t row;       // [column][row_stride]: the latent, then entries that rotate
  uint64_t gain;      // [kLatent]
  uint64_t fine;      // [256][pairs] of (cos, sin): the angle of position % 256
  uint64_t coarse;    // [position / 256][pairs]
  uint64_t parameters;
  uint64_t pages;     // page tables
  uint64_t keys;
  uint64_t q_out;     // [column][head][kHeadPadded]
  uint q_head;
  uint row_stride;
  uint rope_pairs;
  float epsilon;
  float q_scale;
  uint unused;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

#include "constants/rope_workgroup.glsl"
// Constants of rope_latent.comp. They follow HeadConstants, whose head size is the length of a cache row: the latent,
// then the entries that rotate.
CONSTANTS(RopeLatentConstants, 5)
CONSTANT(5, kLatent, latent, 64u)      // entries
CONSTANT(6, kHalves, halves, 0u)       // pairs: 0: (2i, 2i + 1); 1: (i, i + pairs)
CONSTANT(7, kTemperature, temperature, 0u)  // a float's bits: factor of queries at long positions; 0: none
CONSTANT(8, kTemperatureSpan, temperature_span, 1u)  // positions
CONSTANTS_END

shared float entries[kHeadPadded];
shared float sums[kLanes];

#include "kv_write.glsl"

void load(uint column, uint head, uint lane) {
  bool is_query = head < kHeads;
  uint pair = column * kHeads + head;
  Floats latent = Floats(is_query ? push.absorbed + uint64_t(pair) * kLatent * 4u
                                  : push.row + uint64_t(column) * push.row_stride * 4u);
  Floats turning = Floats(is_query ? push.q + (uint64_t(pair) * push.q_head + push.q_head - (kHead - kLatent)) * 4u
                                   : push.row + (uint64_t(column) * push.row_stride + kLatent) * 4u);
  for (uint i = lane; i < kHeadPadded; i += kLanes) {
    float value = 0.0;
    if (i < kLatent) {
      value = latent.v[i];
    } else if (i < kHead) {
      value = turning.v[i - kLatent];
    }
    entries[i] = value;
  }
}

// Returns the scale of the latent's norm. All invocations must call it.
float latent_scale(uint lane) {
  precise float sum = 0.0;
  for (uint i = lane; i < kLatent; i += kLanes) sum = fma(entries[i], entries[i], sum);
  sums[lane] = sum;
  barrier();
  [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
    if (lane < distance) {
      precise float total = sums[lane] + sums[lane + distance];
      sums[lane] = total;
    }
    barrier();
  }
  precise float mean = sums[0] / float(kLatent);
  precise float scale = 1.0 / sqrt(mean + push.epsilon);
  return scale;
}

// Returns entry i of the entries that rotate, after the rotation.
float turned(uint i, Vec2s fine, Vec2s coarse) {
  float own = entries[kLatent + i];
  if (i >= push.rope_pairs * 2u) return own;
  bool second = kHalves == 0u ? (i & 1u) != 0u : i >= push.rope_pairs;
  uint which = kHalves == 0u ? i / 2u : (second ? i - push.rope_pairs : i);
  uint partner = kHalves == 0u ? (i ^ 1u) : (second ? i - push.rope_pairs : i + push.rope_pairs);
  float other = entries[kLatent + partner];
  vec2 f = fine.v[which], c = coarse.v[which];
  precise float cosine = fma(c.x, f.x, -(c.y * f.y));
  precise float sine = fma(c.y, f.x, c.x * f.y);
  precise float first = own * cosine;
  precise float value = second ? fma(other, sine, first) : fma(-other, sine, first);
  return value;
}

void make_row() {
  uint column = gl_WorkGroupID.x;
  if (column != 0u && column >= Words(push.parameters).v[0]) return;
  uvec4 info = ColumnsRef(push.parameters + 64u).v[column];
  if (!chain_wait()) return;
  uint head = gl_WorkGroupID.y;
  uint lane = gl_LocalInvocationID.x;
  bool is_query = head < kHeads;
  load(column, head, lane);
  barrier();
  precise float scale = 1.0;
  if (!is_query) scale = latent_scale(lane);

  uint position = info.y;
  Vec2s fine = Vec2s(push.fine + uint64_t(position & 255u) * push.rope_pairs * 8u);
  Vec2s coarse = Vec2s(push.coarse + uint64_t(position >> 8) * push.rope_pairs * 8u);
  uint slot = position % kPageTokens;
  uint page = 0;
  if (!is_query) page = Words(push.pages).v[info.z + position / kPageTokens];
  uint64_t row_page = push.keys + page_at(page);
  precise float q_scale = push.q_scale;
  if (kTemperature != 0u) {
    precise float grown = fma(uintBitsToFloat(kTemperature), log(float(1u + position / kTemperatureSpan)), 1.0);
    q_scale = q_scale * grown;
  }
  FloatsOut q = FloatsOut(push.q_out + (uint64_t(column) * kHeads + head) * (kHeadPadded * 4u));
  for (uint pair = lane; pair < kHeadPadded / 2u; pair += kLanes) {
    float made[2];
    [[unroll]] for (uint side = 0; side < 2; side++) {
      uint i = pair * 2u + side;
      precise float value = entries[i];
      if (i < kLatent) {
        if (!is_query) value = value * scale * Floats(push.gain).v[i];
      } else if (i < kHead) {
        value = turned(i - kLatent, fine, coarse);
      }
      if (is_query) value = value * q_scale;
      made[side] = value;
    }
    if (is_query) {
      q.v[pair * 2u] = made[0];
      q.v[pair * 2u + 1u] = made[1];
    } else {
      write_pair(row_page, slot, false, pair, made[0], made[1]);
    }
  }
  if (kKvFormat == kKvQ8 && !is_query) {
    barrier();
    write_bytes(row_page, slot, false, lane);
  }
}

void main() {
  make_row();
  chain_arrive();
}
