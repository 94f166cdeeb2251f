// What the ways of sharing attention's work (attention.comp) take, so that one room may serve each.
//
// The includer has attention_state.glsl, kInvocations, kSubgroups, kShare (query heads of a KV head that are taken together; those past its
// last are computed for nobody) and kAhead (how much of anything a lane asks for at once; a power of two of at most eight).
const uint kGroupsOfKv = (kHeads / kKvHeads + kShare - 1u) / kShare;  // of heads
const uint kGroups = kKvHeads * kGroupsOfKv;

// A group's heads in order.
uint first_head(uint group) { return group / kGroupsOfKv * (kHeads / kKvHeads) + group % kGroupsOfKv * kShare; }
uint heads_of(uint group) { return min(kShare, kHeads / kKvHeads - group % kGroupsOfKv * kShare); }

// attention_heads.glsl
const uint kChunks = kHeadPadded / 8u;
const uint kParts = kChunks < kLanes ? kLanes / kChunks : 1u;
const uint kPartHeads = (kShare + kParts - 1u) / kParts;
const uint kPartsUsed = (kShare + kPartHeads - 1u) / kPartHeads;
const uint kLaneChunks = (kChunks + kLanes - 1u) / kLanes;  // of a row; more than one: of all heads
const uint kShareResults = kLaneChunks * kPartHeads * 8u;
const uint kQQuads = kShare * kHeadPadded / 4u;
const uint kShareScores = kShare * 2u;
const uint kRowRaws = kAhead * kLaneChunks;
const uint kRawQuads = kKvFormat == kKvFloat ? 2u : 1u;
// Weights of a position: [part][head of a part], by vec4 where a part has more than two.
const bool kWideWeights = kPartHeads > 2u;
const uint kPartQuads = (kPartHeads + 3u) / 4u;
const uint kWeightQuads = kPartsUsed * kPartQuads;
const uint kWeightFloats = kPartsUsed * kPartHeads;
const uint kWeightRows = kLanes + 1u;  // positions of a block, then by how much results shrink
const uint kRoomOfWeights = kWideWeights ? 0u : kWeightRows * kWeightFloats;

// attention_spread.glsl
const uint kPartialQuads = kPartialFloats / 4u;
const uint kHeadQuads = kHeadPadded / 4u;
// [head][split]: what the result so far is multiplied by, what the split's is, and the split's sum times that.
const uint kShares = kShare * kMaximumSplits;
const uint kRoomOfShares = kShares * 3u;
const uint kOwnShares = (kShares + kInvocations - 1u) / kInvocations;
const uint kSplitsAtOnce = kAhead * 2u;
