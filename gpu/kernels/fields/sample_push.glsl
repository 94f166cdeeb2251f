uint64_t logits;      // [output][stride]
uint64_t partials;    // greedy's: [output][chunks] of {largest, ...}
uint64_t results;     // [output] of {id, log-probability}
uint64_t parameters;
uint64_t choices;     // [output] of SampleChoice
uint vocabulary;
uint stride;
uint chunks;
uint unused;
uint64_t chunk_sums;  // [output][chunks] of sums of weights, 8 bytes each; of draws, then of logprobs.comp
uint64_t logprobs;    // logprobs.comp's results: [output] of LogprobRow
uint64_t cuts;        // sample.comp: [output] of kSampleCutBytes
