// The downs of a single column's experts, and their sum. A workgroup computes a block of rows for all of the column's
// experts, multiplies each expert's result by the expert's weight, and adds up the products. The sum needs no kernel of
// its own, and an H200 computes all workgroups at once.
//
// A share is a segment of an expert's rows. A subgroup computes kOwnShares shares, and loads all of their weights
// before it uses the first. Each result is the sum of its segments in rising order, and then the results are added as
// in mix.comp, so the bits are those of two separate kernels.
//
// The includer has what units_product.glsl and choose_here.glsl have. A step (kStepGroups) is all stages of a
// subgroup's shares.
#include "constants/expert_sum.glsl"

const uint kBlockRows = 16u;
const uint kShares = kUsed * kSegments;
// These are small in a kernel that sums no experts, because such a kernel has room for few weights. A compiler may look
// at the functions below before it knows that nothing calls them.
const uint kOwnShares = kSumsExperts != 0u ? (kShares + kSubgroups - 1u) / kSubgroups : 1u;
const uint kShareStages = kSumsExperts != 0u ? kSegmentStages : 1u;

// [share][row], then the experts' results as [place][row].
shared float share_sums[kSumFloats];

// Returns the number of the subgroup's share `s`. A subgroup that has fewer shares than the others computes the last
// share again.
uint own_share(const uint s) { return min(unit_subgroup * kOwnShares + s, kShares - 1u); }

// Makes the column's experts known to the workgroup.
void learn_experts() {
  if (kChooses != kByRoute) {
    choose_experts();
    return;
  }
  for (uint place = gl_LocalInvocationIndex; place < kUsed; place += kInvocations)
    chosen_experts[place] = Quads(push.tiles).v[1u + place].x;
  barrier();
}

void load_shares(uint block) {
  uint block_count = (push.rows + kBlockRows - 1u) / kBlockRows;
  uint64_t block_bytes = unit_block_bytes(push.groups);
  [[unroll]] for (uint s = 0; s < kOwnShares; s++) {
    uint share = own_share(s);
    uint64_t row_block = uint64_t(chosen_experts[share / kSegments]) * block_count + min(block, block_count - 1u);
    [[unroll]] for (uint i = 0; i < kShareStages; i++) {
      uint stage = share % kSegments * kSegmentStages + i;
      parts[s * kShareStages + i] = load_weights(4u, push.quants + row_block * block_bytes, stage * 4u, lane);
    }
  }
}

void multiply_shares() {
  [[unroll]] for (uint s = 0; s < kOwnShares; s++) {
    uint share = own_share(s), place = share / kSegments;
    x_tiles[0] = push.x + uint64_t(place >> 3) * push.x_stride * 16u + ((place & 7u) * 4u + (lane & 3u)) * 16u;
    sums[0] = no_sums();
    [[unroll]] for (uint i = 0; i < kShareStages; i++) {
      LaneWeights now[kRows];
      [[unroll]] for (uint r = 0; r < kRows; r++) now[r] = parts[s * kShareStages + i];
      multiply_part(now, (share % kSegments * kSegmentStages + i) * 4u);
    }
    // The fragment's first column is in every fourth lane.
    float even_row = sums[0][0], odd_row = sums[0][2];
    if ((lane & 3u) == 0u) {
      uint at = share * kBlockRows + (lane >> 2) * 2u;
      share_sums[at] = even_row;
      share_sums[at + 1u] = odd_row;
    }
  }
}

// Returns a row's sum over the experts.
float sum_of_experts(uint thread) {
  precise float all = kChooses != kByRoute ? sum_of_chosen() : 0.0;
  Floats weights = Floats(push.tiles + kWeightsAt);
  precise float sum = 0.0;
  [[unroll]] for (uint place = 0; place < kUsed; place++) {
    float weight = kChooses != kByRoute ? chosen_weight(place, all) : weights.v[place];
    sum = fma(weight, share_sums[kShares * kBlockRows + place * kBlockRows + thread], sum);
  }
  return sum;
}

void sum_experts() {
  lane = unit_lane;
  hide_constants(push.quants);
  uint block = gl_WorkGroupID.x, thread = gl_LocalInvocationIndex;
  if (!chain_wait() || Words(push.parameters).v[push.count_word] == 0u) return;
  learn_experts();
  load_shares(block);
  // The kernel loads the operands of the sum before it multiplies, so that it need not wait for them afterwards.
  FusedRef fused = FusedRef(push.fused);
  bool makes_input = push.fused != 0ul && fused.next_gain != 0ul;
  uint row = block * kBlockRows + thread % kBlockRows;
  bool beyond = row >= push.rows;
  float there = 0.0, gain = 0.0;
  if (thread < kBlockRows && !beyond) {
    there = FloatsOut(push.out_address).v[row];
    if (makes_input) gain = Floats(fused.next_gain).v[row];
  }
  multiply_shares();
  barrier();
  for (uint i = thread; i < kUsed * kBlockRows; i += kInvocations) {
    uint place = i / kBlockRows, at = place * kSegments * kBlockRows + i % kBlockRows;
    precise float value = share_sums[at];
    [[unroll]] for (uint s = 1; s < kSegments; s++) value = value + share_sums[at + s * kBlockRows];
    if (kBiased != 0u) {
      uint biased_row = min(block * kBlockRows + i % kBlockRows, push.rows - 1u);
      value = value + Floats(fused.bias).v[chosen_experts[place] * push.rows + biased_row];
    }
    share_sums[kShares * kBlockRows + i] = value;
  }
  barrier();
  if (thread >= kBlockRows || row >= push.written_rows) return;
  precise float total = there + sum_of_experts(thread);
  if (!beyond) FloatsOut(push.out_address).v[row] = total;
  if (makes_input) {
    precise float input_value = beyond ? 0.0 : total * gain * kInputShrink;
    store_input(fused.next_input, 0u, fused.next_stride, row, input_value, INPUT_FORM);
  }
}
