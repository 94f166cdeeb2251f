// The sizes of the ways of dividing attention's work (attention.comp), so that one room can serve each of them.
//
// The includer has attention_state.glsl, kInvocations, kSubgroups, kShare (how many query heads of a KV head are
// computed together; results beyond the last head are not used) and kAhead (how many loads of one kind a lane issues
// at once; a power of two of at most eight).
const uint kGroupsOfKv = (kHeads / kKvHeads + kShare - 1u) / kShare;  // of heads
const uint kGroups = kKvHeads * kGroupsOfKv;

// The heads of a group are in order.
uint first_head(uint group) { return group / kGroupsOfKv * (kHeads / kKvHeads) + group % kGroupsOfKv * kShare; }
uint heads_of(uint group) { return min(kShare, kHeads / kKvHeads - group % kGroupsOfKv * kShare); }

// attention_heads.glsl
const uint kChunks = kHeadPadded / 8u;
const uint kParts = kChunks < kLanes ? kLanes / kChunks : 1u;
const uint kPartHeads = (kShare + kParts - 1u) / kParts;
const uint kPartsUsed = (kShare + kPartHeads - 1u) / kPartHeads;
// per row; if there are several, each lane takes all heads
const uint kLaneChunks = (kChunks + kLanes - 1u) / kLanes;
const uint kShareResults = kLaneChunks * kPartHeads * 8u;
const uint kQQuads = kShare * kHeadPadded / 4u;
const uint kShareScores = kShare * 2u;
const uint kRowRaws = kAhead * kLaneChunks;
const uint kRawQuads = kKvFormat == kKvFloat ? 2u : 1u;
// Weights of a position: [part][head of a part], as vec4 if a part has more than two heads.
const bool kWideWeights = kPartHeads > 2u;
const uint kPartQuads = (kPartHeads + 3u) / 4u;
const uint kWeightQuads = kPartsUsed * kPartQuads;
const uint kWeightFloats = kPartsUsed * kPartHeads;
const uint kWeightRows = kLanes + 1u;  // positions of a block, then the factor by which earlier results shrink
const uint kRoomOfWeights = kWideWeights ? 0u : kWeightRows * kWeightFloats;

// attention_spread.glsl
const uint kHeadQuads = kHeadPadded / 4u;
// [head][split]: the factor of the result so far, the factor of the split's result, and the split's sum times that.
const uint kShares = kShare * kMaximumSplits;
const uint kRoomOfShares = kShares * 3u;
const uint kOwnShares = (kShares + kInvocations - 1u) / kInvocations;
const uint kSplitsAtOnce = kAhead * 2u;
