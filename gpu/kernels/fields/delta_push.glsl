uint64_t mixed;        // [column][mixed_stride]: q heads, k heads, v heads, gates, betas, alphas
uint64_t convolved;    // [column][kChannels]: q heads, k heads, v heads
uint64_t read;         // [column][value head][kSize]: what was read of the state
uint64_t states;       // [slot][slot_floats]: [value head][value][key], then [tap][channel]
uint64_t parameters;
uint64_t runs;         // [run]: DeltaRun
uint64_t column_runs;  // [column]: its run
uint64_t weights;      // delta_inputs: [channel][kTaps]; delta_scan: rates [value head]; delta_output: gain [kSize]
uint64_t bias;         // delta_scan: [value head]
uint64_t out_address;  // delta_output: a product's input, [column][out_stride], by store_input
uint mixed_stride;
uint slot_floats;
uint out_stride;
uint padded_width;
float epsilon;
uint unused;
