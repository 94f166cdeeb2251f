// What attention is told.
layout(push_constant, std430) uniform Push {
  uint64_t q;            // [column][head][kHeadPadded]
  uint64_t keys;
  uint64_t values;
  uint64_t parameters;
  uint64_t pages;
  uint64_t out_address;  // kPartial: [column][head][kMaximumSplits][kPartialFloats]; else [column][out_stride]
  uint out_stride;
  uint padded_width;
  uint64_t partials;     // attention_spread.glsl: [column][head][most_splits][kPartialFloats]
  uint64_t counts;       // and workgroups that are done: [column][kHeads], zeros before and after
  uint most_splits;
  uint unused;
  uint64_t sinks;        // [head], for kSinks
  CHAIN_PUSH
} push;
