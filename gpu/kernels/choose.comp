// Chooses the experts of each column and their weights. It also makes the lists with which products read each chosen
// expert's weights once for all of its columns.
//
// kChoose: a subgroup for each column takes the kUsed largest logits, the largest first; of equal logits the one with
// the lower index comes first. A weight is exp(logit - largest), divided by a sum of the same terms: over all experts
// (a lane adds its own in rising order, then the lanes' sums are added by halving distances), or over the chosen
// experts in their order. The weight is then multiplied by `scale`, and by the expert's own scale.
//
// With kByScores (DeepSeek-V3, arXiv 2412.19437) a subgroup compares scores plus biases instead of logits. A score is
// the logit's sigmoid, or its share in the softmax. A group's value is the sum of its two largest scores plus biases.
// The subgroup takes experts only from the kGroupsUsed groups with the largest values; of equal groups it takes the
// lower index. Weights are made of scores without biases.
//
// kOneColumn: the workgroup's invocations divide a single column's experts among them. An invocation counts how many
// experts come before its own; that is its expert's place.
//
// kSort: a pair is a column's place for a chosen expert, column * kUsed + place. One workgroup sorts the pairs by
// expert and divides each expert's pairs into tiles of kTileColumns. The place of a pair in its expert's list changes
// no bit of its result, so pairs take places in any order.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(ChoosePush)
  uint64_t logits;         // [column][experts, then the shared one's gate]
  uint64_t chosen;         // [pair]: its expert
  uint64_t weights;        // [column][kUsed, then the shared expert's]
  uint64_t list;           // pairs, by expert
  // The number of tiles; from byte 16 on, for each tile: {expert, first place in the list, places, the
  // first place's pair}.
  uint64_t tiles;
  uint64_t parameters;
  float scale;             // factor of all weights
  uint unused;
  uint64_t expert_scales;  // [expert], or 0
  uint64_t choice_bias;    // [expert]: kByScores: added to scores only for the choice; or 0
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(ChooseConstants, 0)
CONSTANT(0, kLanes, lanes, 8u)          // subgroup size
CONSTANT(1, kSubgroups, subgroups, 1u)  // each chooses for a column at a time
INVOCATIONS(2, kInvocations, invocations, 8u)  // kLanes * kSubgroups
CONSTANT(3, kPart, part, 0u)                   // ChoosePart
CONSTANT(4, kExperts, experts, 1u)
CONSTANT(5, kUsed, used, 1u)                 // per column
CONSTANT(6, kSharedGate, shared_gate, 0u)    // one more logit is that of the shared expert's gate
// weights are divided by the chosen experts' sum, not by the sum over all
CONSTANT(7, kRenormalise, renormalise, 0u)
CONSTANT(8, kTileColumns, tile_columns, 1u)  // of the products that follow
CONSTANT(9, kSigmoid, sigmoid, 0u)   // scores are the logits' sigmoids, not their softmax
CONSTANT(10, kByScores, by_scores, 0u)  // experts are chosen by score, a bias and groups, not by logit
CONSTANT(11, kGroups, groups, 1u)            // groups of neighbouring experts, equally many experts in each; at most 32
CONSTANT(12, kGroupsUsed, groups_used, 1u)   // groups from which a column takes experts
CONSTANTS_END

#include "values/choosing.glsl"
const uint kLogits = kExperts + kSharedGate, kWeights = kUsed + kSharedGate;
const uint kOfLane = (kExperts + kLanes - 1u) / kLanes;
const uint kNone = 0xffffffffu;

layout(buffer_reference, std430, buffer_reference_align = 16) buffer TilesOut { uvec4 v[]; };

shared uint places[kExperts];
// There is room for each subgroup's column, or for the single column.
const uint kChosenRoom = kSubgroups;
#include "choose_one.glsl"

// Returns the softmax's denominator over all experts. `kept` has the lane's own logits.
float softmax_sum(float kept[kOfLane], float largest) {
  uint lane = gl_SubgroupInvocationID;
  precise float sum = 0.0;
  [[unroll]] for (uint i = 0; i < kOfLane; i++) {
    if (i * kLanes + lane < kExperts) sum = sum + softmax_part(kept[i], largest);
  }
  [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
    sum = sum + subgroupShuffleXor(sum, distance);
  }
  return sum;
}

const float kLeast = -3.4028234e38;

// Returns the groups from which a column may take experts: bit g stands for group g.
uint best_groups(float kept[kOfLane]) {
  uint lane = gl_SubgroupInvocationID;
  float sums[kGroups];
  for (uint group = 0; group < kGroups; group++) {
    float best = kLeast, second = kLeast;
    for (uint i = 0; i < kOfLane; i++) {
      uint expert = i * kLanes + lane;
      if (expert < kExperts && expert / (kExperts / kGroups) == group) {
        second = max(second, min(best, kept[i]));
        best = max(best, kept[i]);
      }
    }
    [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
      float other = subgroupShuffleXor(best, distance);
      float other_second = subgroupShuffleXor(second, distance);
      second = max(min(best, other), max(second, other_second));
      best = max(best, other);
    }
    precise float sum = best + second;
    sums[group] = kExperts == kGroups ? best : sum;
  }
  uint taken = 0u;
  for (uint place = 0; place < kGroupsUsed; place++) {
    uint best_at = kNone;
    float best = 0.0;
    for (uint group = 0; group < kGroups; group++) {
      if ((taken >> group & 1u) == 0u && (best_at == kNone || sums[group] > best)) {
        best = sums[group];
        best_at = group;
      }
    }
    taken |= 1u << best_at;
  }
  return taken;
}

// Replaces a lane's logits with the scores by which experts are chosen.
void make_scores(inout float kept[kOfLane], float largest, float sum) {
  uint lane = gl_SubgroupInvocationID;
  [[unroll]] for (uint i = 0; i < kOfLane; i++) {
    precise float score = kSigmoid != 0u ? sigmoid(kept[i]) : softmax_part(kept[i], largest) / sum;
    if (push.choice_bias != 0ul) score = score + Floats(push.choice_bias).v[min(i * kLanes + lane, kExperts - 1u)];
    kept[i] = score;
  }
  if (kGroups <= 1u) return;
  uint groups = best_groups(kept);
  [[unroll]] for (uint i = 0; i < kOfLane; i++) {
    uint expert = min(i * kLanes + lane, kExperts - 1u);
    if ((groups >> expert / (kExperts / kGroups) & 1u) == 0u) kept[i] = kLeast;
  }
}

// The parts of one column's softmax, which every lane knows.
struct Softmax {
  float largest, sum;
};

// Loads into `kept` the values by which the lane's experts are chosen. Returns the softmax if the values need one.
Softmax load_scores(Floats logits, out float kept[kOfLane]) {
  uint lane = gl_SubgroupInvocationID;
  [[unroll]] for (uint i = 0; i < kOfLane; i++) kept[i] = logits.v[min(i * kLanes + lane, kExperts - 1u)];
  Softmax softmax = Softmax(0.0, 0.0);
  if (kByScores == 0u) return softmax;
  softmax.largest = kept[0];
  [[unroll]] for (uint i = 1; i < kOfLane; i++) softmax.largest = max(softmax.largest, kept[i]);
  [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
    softmax.largest = max(softmax.largest, subgroupShuffleXor(softmax.largest, distance));
  }
  if (kSigmoid == 0u) softmax.sum = softmax_sum(kept, softmax.largest);
  make_scores(kept, softmax.largest, softmax.sum);
  return softmax;
}

// Chooses the experts of the subgroup's column. The places are filled one after the other: each gets the largest
// value that comes after the previous place's value. (A NaN gets no place; then any expert will do.)
void take_by_turns(float kept[kOfLane], uint room) {
  uint lane = gl_SubgroupInvocationID;
  float before = uintBitsToFloat(0x7f800000u);
  int before_at = -1;
  [[unroll]] for (uint place = 0; place < kUsed; place++) {
    float best = 0.0;
    uint best_at = kNone;
    [[unroll]] for (uint i = 0; i < kOfLane; i++) {
      uint expert = i * kLanes + lane;
      bool after = kept[i] < before || (kept[i] == before && int(expert) > before_at);
      if (expert < kExperts && after && (best_at == kNone || kept[i] > best)) {
        best = kept[i];
        best_at = expert;
      }
    }
    [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
      float other = subgroupShuffleXor(best, distance);
      uint other_at = subgroupShuffleXor(best_at, distance);
      bool better = best_at == kNone || other > best || (other == best && other_at < best_at);
      if (other_at != kNone && better) {
        best = other;
        best_at = other_at;
      }
    }
    if (best_at != kNone) {
      before = best;
      before_at = int(best_at);
    }
    if (lane == 0u) {
      chosen_values[room + place] = best;
      chosen_experts[room + place] = best_at != kNone ? best_at : place;
    }
  }
}

// Returns the weight of the chosen expert at `place`, before the division.
float part_of(Floats logits, uint place, float largest) {
  float value = kByScores != 0u ? logits.v[chosen_experts[place]] : chosen_values[place];
  return kSigmoid != 0u ? sigmoid(value) : softmax_part(value, largest);
}

// Computes the weights of the experts that the subgroup's column uses; each lane computes those of some places.
void weigh(uint column, Floats logits, float kept[kOfLane], Softmax softmax, uint room) {
  uint lane = gl_SubgroupInvocationID;
  float largest = softmax.largest;
  precise float sum = kSigmoid != 0u ? 1.0 : softmax.sum;
  if (kByScores == 0u) {
    largest = chosen_values[room];
    if (kRenormalise == 0u) sum = softmax_sum(kept, largest);
  }
  if (kRenormalise != 0u) {
    sum = kSigmoid != 0u ? 1e-20 : 0.0;  // sigmoids may all be 0
    [[unroll]] for (uint place = 0; place < kUsed; place++) sum = sum + part_of(logits, room + place, largest);
  }
  for (uint place = lane; place < kUsed; place += kLanes) {
    uint expert = chosen_experts[room + place], pair = column * kUsed + place;
    precise float share = part_of(logits, room + place, largest) / sum;
    precise float weight = share * push.scale;
    if (push.expert_scales != 0ul) weight = weight * Floats(push.expert_scales).v[expert];
    WordsOut(push.chosen).v[pair] = expert;
    FloatsOut(push.weights).v[column * kWeights + place] = weight;
    if (kPart == kOneColumn) {
      WordsOut(push.list).v[pair] = pair;
      TilesOut(push.tiles).v[1u + pair] = uvec4(expert, pair, 1u, pair);
    }
  }
  if (lane != 0u) return;
  if (kPart == kOneColumn) WordsOut(push.tiles).v[0] = kUsed;
  if (kSharedGate != 0u) FloatsOut(push.weights).v[column * kWeights + kUsed] = sigmoid(logits.v[kExperts]);
}

Floats logits_of(uint column) { return Floats(push.logits + uint64_t(column) * kLogits * 4u); }

void choose(uint column) {
  uint room = gl_SubgroupID * kUsed;
  float kept[kOfLane];
  Softmax softmax = load_scores(logits_of(column), kept);
  take_by_turns(kept, room);
  subgroupMemoryBarrierShared();
  subgroupBarrier();
  weigh(column, logits_of(column), kept, softmax, room);
  // All lanes have read this column's experts before the next column's are written.
  subgroupMemoryBarrierShared();
  subgroupBarrier();
}

void choose_one() {
  uint lane = gl_SubgroupInvocationID;
  float kept[kOfLane];
  Softmax softmax = Softmax(0.0, 0.0);
  if (gl_SubgroupID == 0u) {
    softmax = load_scores(logits_of(0u), kept);
    [[unroll]] for (uint i = 0; i < kOfLane; i++) {
      if (i * kLanes + lane < kExperts) one_column[i * kLanes + lane] = kept[i];
    }
  }
  take_by_counting();
  if (gl_SubgroupID == 0u) weigh(0u, logits_of(0u), kept, softmax, 0u);
}

// Finds where each expert's pairs begin in the list, and makes the tiles. One subgroup does it; each of its lanes
// takes some neighbouring experts.
void cut_tiles() {
  uint lane = gl_SubgroupInvocationID;
  uint count = 0u, tiles = 0u;
  for (uint i = 0; i < kOfLane; i++) {
    uint expert = lane * kOfLane + i;
    uint own = expert < kExperts ? places[expert] : 0u;
    count += own;
    tiles += (own + kTileColumns - 1u) / kTileColumns;
  }
  uint place = count, tile = tiles;
  [[unroll]] for (uint distance = 1u; distance < kLanes; distance *= 2u) {
    uint from = lane >= distance ? lane - distance : lane;
    uint more = subgroupShuffle(place, from), more_tiles = subgroupShuffle(tile, from);
    if (lane >= distance) {
      place += more;
      tile += more_tiles;
    }
  }
  if (lane == kLanes - 1u) WordsOut(push.tiles).v[0] = tile;
  place -= count;
  tile -= tiles;
  for (uint i = 0; i < kOfLane; i++) {
    uint expert = lane * kOfLane + i;
    if (expert < kExperts) {
      uint own = places[expert];
      places[expert] = place;
      for (uint first = 0; first < own; first += kTileColumns) {
        if (kTileColumns != 1u) {
          TilesOut(push.tiles).v[1u + tile] = uvec4(expert, place + first, min(kTileColumns, own - first), 0u);
        }
        tile++;
      }
      place += own;
    }
  }
}

void sort(uint pairs) {
  uint thread = gl_LocalInvocationIndex;
  for (uint expert = thread; expert < kExperts; expert += kInvocations) places[expert] = 0u;
  barrier();
  for (uint pair = thread; pair < pairs; pair += kInvocations) atomicAdd(places[WordsOut(push.chosen).v[pair]], 1u);
  barrier();
  if (gl_SubgroupID == 0u) cut_tiles();
  barrier();
  for (uint pair = thread; pair < pairs; pair += kInvocations) {
    uint expert = WordsOut(push.chosen).v[pair];
    uint place = atomicAdd(places[expert], 1u);
    WordsOut(push.list).v[place] = pair;
    if (kTileColumns == 1u) TilesOut(push.tiles).v[1u + place] = uvec4(expert, place, 1u, pair);
  }
}

void choose_all() {
  if (!chain_wait()) return;
  uint count = Words(push.parameters).v[0];
  if (kPart == kOneColumn) {
    if (count != 0u) choose_one();
  } else if (kPart != kSort) {
    uint step = kSubgroups * gl_NumWorkGroups.x;
    for (uint column = gl_WorkGroupID.x * kSubgroups + gl_SubgroupID; column < count; column += step) choose(column);
  }
  if (kPart == kBoth) {
    memoryBarrierBuffer();
    barrier();
  }
  if (kPart == kBoth || kPart == kSort) sort(count * kUsed);
}

void main() {
  choose_all();
  chain_arrive();
}
