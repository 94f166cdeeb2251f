// Changes logits of single tokens before the draw: biases and penalties, as worker/engine/sampler.hpp defines them and
// with the CPU's bits. Numbers that are not finite stay, so that the log-probability still shows them.
//
// kTells: the second pass, after the draw. logprobs.comp has run before the changes, so the chosen token's logit in
// its results was another token's. This writes the chosen one's, as it was before the changes. A mask changes no logit
// of a token that may come.
#version 460
#include "common.glsl"
#include "adjusted_rows.glsl"
#include "values/logprobs.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(EditLogitsPush)
  uint64_t logits;       // [output][stride]
  uint64_t adjustments;  // adjusted_rows.glsl
  uint64_t results;      // kTells: as sample.comp's
  uint64_t parameters;
  uint64_t choices;
  uint64_t logprobs;
  uint vocabulary;
  uint stride;
  FIELDS_END
} push;

CONSTANTS(EditLogitsConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kTells, tells, 0u)
CONSTANTS_END

const float kMostEdited = 1.0e37;
const uint kNone = 0xffffffffu;

shared uint found;

uint64_t logits_of(uint output_index) { return push.logits + uint64_t(output_index) * push.stride * 4u; }

// Returns the index of the last of `count` edits that has the token, or kNone.
uint find_edit(uint64_t edits, uint count, uint token) {
  uint at = kNone;
  for (uint i = 0u; i < count; i++) at = Quads(edits).v[i].x == token ? i : at;
  return at;
}

// An edit is {token, bias, subtrahend, 1: the repetition penalty applies}.
void change(AdjustedRowRef row, uvec4 edit, uint place) {
  if (edit.x >= push.vocabulary) return;
  FloatsOut logits = FloatsOut(logits_of(row.output_index));
  float before = logits.v[edit.x];
  if (row.before != 0ul) FloatsOut(row.before).v[place] = before;
  if ((floatBitsToUint(before) & 0x7f800000u) == 0x7f800000u) return;
  precise float biased = before + uintBitsToFloat(edit.y);
  precise float scaled = biased * (biased > 0.0 ? row.inverse : row.repetition);
  precise float repeated = edit.w != 0u ? scaled : biased;
  precise float changed = repeated - uintBitsToFloat(edit.z);
  logits.v[edit.x] = clamp(changed, -kMostEdited, kMostEdited);
}

// The workgroups share the rows and their edits; few outputs have any.
void edit_rows() {
  uint count = adjusted_rows(push.adjustments);
  uint first = gl_WorkGroupID.y * kInvocations + gl_LocalInvocationID.x;
  for (uint index = gl_WorkGroupID.x; index < count; index += gl_NumWorkGroups.x) {
    AdjustedRowRef row = adjusted_row(push.adjustments, index);
    for (uint i = first; i < row.edits; i += gl_NumWorkGroups.y * kInvocations) {
      uvec4 edit = Quads(row.list).v[i];
      if (find_edit(row.ahead, row.ahead_edits, edit.x) == kNone) change(row, edit, i);
    }
    for (uint i = first; i < row.ahead_edits; i += gl_NumWorkGroups.y * kInvocations)
      change(row, Quads(row.ahead).v[i], row.edits + i);
  }
}

void tell_chosen() {
  uint output_index = gl_WorkGroupID.x;
  if (output_index >= Words(push.parameters).v[1]) return;
  if (Quads(push.choices).v[output_index * 2u + 1u].w == 0u) return;
  uint lane = gl_LocalInvocationID.x;
  uint token = min(Words(push.results).v[output_index * 2u], push.vocabulary - 1u);
  uint64_t before = 0ul;
  if (lane == 0u) found = kNone;
  barrier();
  uint count = adjusted_rows(push.adjustments);
  for (uint index = 0u; index < count; index++) {
    AdjustedRowRef row = adjusted_row(push.adjustments, index);
    if (row.output_index != output_index || row.before == 0ul) continue;
    before = row.before;
    uint ahead = find_edit(row.ahead, row.ahead_edits, token);
    if (ahead != kNone) {
      if (lane == 0u) found = row.edits + ahead;
      continue;
    }
    for (uint i = lane; i < row.edits; i += kInvocations) {
      if (Quads(row.list).v[i].x == token) found = i;
    }
  }
  barrier();
  if (lane != 0u) return;
  float logit = found != kNone ? Floats(before).v[found] : Floats(logits_of(output_index)).v[token];
  FloatsOut(push.logprobs + uint64_t(output_index) * kLogprobBytes).v[3] = logit;
}

void main() {
  if (kTells != 0u) {
    tell_chosen();
  } else {
    edit_rows();
  }
}
