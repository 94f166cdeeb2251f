// One column's product by matrix units, as a link of a chain: the bits of matvec_units.comp, made for the one stream that
// waits for every link.
//
// Workgroups are few and each takes rows' blocks in turn, the next block's weights asked for before the last one's sums are
// done. The input is asked for once, and kept in shared memory. Where it is
// tagged (tagged.glsl) the wait for it is the reading of it.
#version 460
#extension GL_GOOGLE_include_directive : require
#define BULKHEAD_SINGLE
#include "chain_push.glsl"
#include "common.glsl"
#include "units.glsl"
#include "matvec_push.glsl"
#include "chain.glsl"
#include "tagged.glsl"

layout(constant_id = 0) const uint kType = 8;
layout(constant_id = 6) const uint kSubgroups = 4;
layout(constant_id = 7) const uint kInvocations = 128;   // kLanes * kSubgroups
layout(constant_id = 8) const uint kSegments = 1;
layout(constant_id = 9) const uint kSegmentStages = 1;
layout(constant_id = 10) const uint kStepGroups = 4;     // groups of a step of the loop
// 1: a step's weights are asked for before the step before is computed; 0: behind it, in fewer registers.
layout(constant_id = 11) const uint kAhead = 0;
layout(constant_id = 12) const uint kScaling = 0;
layout(constant_id = 13) const uint kInputPieces = 4;    // of eight entries, in the input
layout(constant_id = 14) const uint kShare = 1;          // segments that a subgroup makes, one after another
layout(constant_id = 15) const uint kParts = 1;          // subgroups that share a block: kSegments / kShare, rounded up
layout(local_size_x_id = 7) in;

#define EPILOGUE kEpilogue
#define SCALING kScaling
#define OUT_FORM kOutForm
#define INPUT_FORM kInputUnits
#define UNIT_TYPE kType
#define SEGMENTS kSegments
#define SEGMENT_STAGES kSegmentStages
const uint kColumnTiles = 1;
#include "page_tokens.glsl"
#include "epilogue.glsl"
#include "norm_scale.glsl"
#include "units_product.glsl"

shared uvec4 inputs[kInputPieces];           // halves of eight entries
const uint kPlaces = kSubgroups / kParts;
// Of two blocks in turn: [place][segment][pair of rows].
shared vec2 partials[2 * kPlaces * kSegments * 8];
shared float norm_parts[kNormParts];

const uint kBatch = 2;

uvec2 halves_of(uvec4 tagged) { return uvec2(tagged.x & 0xffffu | tagged.y << 16, tagged.z & 0xffffu | tagged.w << 16); }

// Some pieces of the input to shared memory. False: not all of them are there yet.
bool take_tagged_batch(uint first, uint tag) {
  uvec4 words[kBatch * 2];
  [[unroll]] for (uint i = 0; i < kBatch * 2u; i++) {
    uint at = first + i / 2u * kInvocations;
    words[i] = uvec4(tag << 16);
    if (at < kInputPieces) words[i] = tagged_quad(push.x, at * 2u + i % 2u);
  }
  bool there = true;
  [[unroll]] for (uint i = 0; i < kBatch * 2u; i++) there = there && has_high_tag(words[i], tag);
  [[unroll]] for (uint i = 0; i < kBatch; i++) {
    uint at = first + i * kInvocations;
    if (at < kInputPieces) inputs[at] = uvec4(halves_of(words[i * 2u]), halves_of(words[i * 2u + 1u]));
  }
  return there;
}

void take_tagged_input(uint tag) {
  uint first = gl_LocalInvocationIndex, spins = 0u;
  // Who comes late finds all of it. Who comes early looks at a single word, of each workgroup another, so that memory is not
  // busy with looking.
  if (take_tagged_batch(first, tag)) first += kInvocations * kBatch;
  if (gl_LocalInvocationIndex == 0u) {
    uint at = gl_WorkGroupID.y * 2654435761u % kInputPieces;
    while (!has_high_tag(tagged_quad(push.x, at * 2u), tag) && !chain_in_vain(spins)) {}
  }
  barrier();
  spins = 0u;
  [[dont_unroll]] while (first < kInputPieces) {
    if (take_tagged_batch(first, tag) || chain_in_vain(spins)) first += kInvocations * kBatch;
  }
}

void take_input() {
  [[dont_unroll]] for (uint first = gl_LocalInvocationIndex; first < kInputPieces; first += kInvocations * kBatch) {
    uvec4 pieces[kBatch];
    [[unroll]] for (uint i = 0; i < kBatch; i++) {
      uint at = first + i * kInvocations;
      if (at < kInputPieces) pieces[i] = Quads(push.x + (at >> 2) * 512u).v[at & 3u];
    }
    [[unroll]] for (uint i = 0; i < kBatch; i++) {
      uint at = first + i * kInvocations;
      if (at < kInputPieces) inputs[at] = pieces[i];
    }
  }
}

// The squares of the residual stream, in the order that norm_scale.glsl tells.
void sum_squares(FusedRef fused, uint tag) {
  const uint kRounds = 2;  // on their way together
  for (uint part = unit_subgroup; part < kNormParts; part += kSubgroups) {
    precise float sum = 0.0;
    uint spins = 0u;
    [[dont_unroll]] for (uint first = part * kLanes + lane; first * 4u < fused.stream_width; first += kRounds * kNormParts * kLanes) {
      uvec4 words[kRounds * 2];
      bool there;
      do {
        there = true;
        [[unroll]] for (uint i = 0; i < kRounds * 2u; i++) {
          uint at = (first + i / 2u * kNormParts * kLanes) * 2u + i % 2u;
          words[i] = uvec4(tag);
          if (at * 2u < fused.stream_width) words[i] = tagged_quad(fused.tagged_stream, at);
        }
        [[unroll]] for (uint i = 0; i < kRounds * 2u; i++) {
          uint entry = (first + i / 2u * kNormParts * kLanes) * 4u + i % 2u * 2u;
          there = there && (entry >= fused.stream_width || has_low_tag(words[i].xy, tag)) &&
                  (entry + 1u >= fused.stream_width || has_low_tag(words[i].zw, tag));
        }
      } while (!there && !chain_in_vain(spins));
      [[unroll]] for (uint i = 0; i < kRounds * 4u; i++) {
        uint k = (first + i / 4u * kNormParts * kLanes) * 4u + i % 4u;
        uvec2 pair = i % 2u == 0u ? words[i / 2u].xy : words[i / 2u].zw;
        float entry = k < fused.stream_width ? tagged_float(pair) : 0.0;
        sum = fma(entry, entry, sum);
      }
    }
    [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
      sum = sum + subgroupShuffleXor(sum, distance);
    }
    if (lane == 0u) norm_parts[part] = sum;
  }
}

// The norm's scale is a workgroup's own affair; the others need it last of all.
void make_scale(FusedRef fused) {
  sum_squares(fused, push.tags & 0xffffu);
  barrier();
  if (gl_LocalInvocationIndex != 0u) return;
  precise float squares = norm_parts[0];
  [[unroll]] for (uint part = 1; part < kNormParts; part++) squares = squares + norm_parts[part];
  store_tagged_float(fused.tagged_scale, 0u, norm_scale(squares, fused.stream_width, fused.epsilon),
                     tag_of_link(push.chain_link));
}

float made_scale(uvec2 words, FusedRef fused) {
  uint spins = 0u;
  while (!has_low_tag(words, tag_of_link(push.chain_link)) && !chain_in_vain(spins)) words = tagged_pair(fused.tagged_scale, 0u);
  return tagged_float(words);
}

// Where the weights are that `next_weights` gets next, of whatever blocks the subgroup takes in turn.
LaneWeights next_weights;
struct Cursor {
  uint64_t block;
  uint turn, group;
} cursor;
struct Work {
  uint own, stride, place;        // the workgroup takes blocks own, own + stride, ... and as many more as it has places
  uint first_group, last_group;   // the subgroup's share of each
  uint block_count, last_block;
} work;

void begin_block(uint first) {
  cursor.turn = first;
  cursor.group = work.first_group;
  cursor.block = push.quants + min(first + work.place, work.last_block) * unit_block_bytes(UNIT_TYPE, push.groups);
}

void load_ahead() {
  if (cursor.turn >= work.block_count) return;
  next_weights = load_weights(UNIT_TYPE, kStepGroups, cursor.block, cursor.group, lane);
  cursor.group += kStepGroups;
  if (cursor.group >= work.last_group) begin_block(cursor.turn + work.stride);
}

// The sums of the next block, which are whole segments, to `partials` from `slot` on.
void multiply_block(uint slot) {
  sums[0] = no_sums();
  [[dont_unroll]] for (uint group = work.first_group; group < work.last_group; group += kStepGroups) {
    LaneWeights now = next_weights;
    if (kAhead != 0u) load_ahead();
    prepare(UNIT_TYPE, now);
    [[unroll]] for (uint g = 0; g < kStepGroups; g++) {
      uvec4 x = inputs[(group + g) * 4u + (lane & 3u)];  // for all of the unit's columns: nobody reads the others' sums
      f16vec2 even_row[4], odd_row[4];
      unpack_group(UNIT_TYPE, now, g, lane, even_row, odd_row);
      [[unroll]] for (uint j = 0; j < 2; j++) {
        sums[0] = multiply_add(weight_fragment(even_row, odd_row, j), input_fragment(x, j), sums[0]);
      }
    }
    if (kAhead == 0u) load_ahead();
    uint done = group + kStepGroups;
    if (done >= work.last_group || (kShare > 1u && done % (kSegmentStages * 4u) == 0u)) {
      if ((lane & 3u) == 0u) partials[slot + group / (kSegmentStages * 4u) * 8u + (lane >> 2)] = vec2(sums[0][0], sums[0][2]);
      if (kShare > 1u) sums[0] = no_sums();
    }
  }
}

void make_product() {
  const uint kOthers = kScaling == kScaledHere ? 1u : 0u;
  uint place = unit_subgroup / kParts, part = unit_subgroup % kParts;
  work.own = (gl_WorkGroupID.y - kOthers) * kPlaces;
  work.stride = (gl_NumWorkGroups.y - kOthers) * kPlaces;
  work.place = place;
  work.first_group = part * kShare * kSegmentStages * 4u;
  work.last_group = min(work.first_group + kShare * kSegmentStages * 4u, push.groups);
  work.block_count = (push.written_rows + results_of_block() - 1u) / results_of_block();
  work.last_block = (push.rows + results_of_block() - 1u) / results_of_block() - 1u;
  begin_block(work.own);
  load_ahead();
  FusedRef fused = FusedRef(push.fused);
  uint count = Words(push.parameters).v[push.count_word];
  bool finishes = part == 0u && (lane & 3u) == 0u && count != 0u;
  PairOperands operands;
  // But what the chain makes itself.
  if (EPILOGUE != kAdd && finishes && work.own + place < work.block_count) {
    operands = pair_operands(0u, work.own + place, count, fused);
  }
  uint tag = push.tags & 0xffffu;
  if (tag != 0u) {
    take_tagged_input(tag);
  } else {
    chain_wait();
    take_input();
  }
  barrier();
  float scale = 1.0;
  uint turn = 0u;
  [[dont_unroll]] for (uint first = work.own; first < work.block_count; first += work.stride) {
    uint block = first + place;
    bool stores = finishes && block < work.block_count;
    if ((EPILOGUE == kAdd || turn != 0u) && stores) {
      operands = pair_operands(0u, block, count, fused);
    }
    uint slot = ((turn & 1u) * kPlaces + place) * (kSegments * 8u);
    multiply_block(slot);
    uvec2 scale_words = uvec2(0u);
    if (kScaling == kScaledHere && turn == 0u && finishes) scale_words = tagged_pair(fused.tagged_scale, 0u);
    // A subgroup alone reads what each of its lanes has written itself.
    if (kParts > 1u) barrier();
    if (stores) {
      uint at = slot + (lane >> 2);
      precise float even = partials[at].x, odd = partials[at].y;
      [[unroll]] for (uint s = 1; s < kSegments; s++) {
        even = even + partials[at + s * 8u].x;
        odd = odd + partials[at + s * 8u].y;
      }
      if (kScaling == kScaledHere && turn == 0u) scale = made_scale(scale_words, fused);
      finish_pair(0u, block, even, odd, scale, operands, fused);
    }
    turn++;
  }
}

void main() {
  lane = unit_lane;
  hide_constants(push.quants);
  if (kScaling == kScaledHere && gl_WorkGroupID.y == 0u) {
    make_scale(FusedRef(push.fused));
  } else {
    make_product();
  }
  chain_arrive();
}
