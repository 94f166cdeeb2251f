uint64_t q;            // [column][head][kHeadPadded]
uint64_t keys;
uint64_t values;
uint64_t parameters;
uint64_t pages;
uint64_t out_address;  // kPartial: [column][head][kMaximumSplits][kPartialFloats]; else [column][out_stride]
uint out_stride;
uint padded_width;
// For GPUs, in modes with partial results (attention_spread.glsl):
uint64_t partials;     // [column][head][most_splits][kPartialFloats]
// counters of workgroups that are done: [column][head], kAttentionCountBytes each, zeros before and after
uint64_t counts;
uint most_splits;      // partial_splits()
uint unused;
uint64_t sinks;        // [head], times log2(e), for kSinks; 0: the shape has none
