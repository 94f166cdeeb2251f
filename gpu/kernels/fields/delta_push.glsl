uint64_t mixed;        // [column][mixed_stride]: channels, gates, betas, alphas (kChannelRule: decays, betas)
uint64_t convolved;    // [column][kChannels]
uint64_t read;         // [column][value head][kValueSize]: what was read of the state
uint64_t states;       // [slot][slot_floats]: [value head][value][key], then [tap][channel]
uint64_t parameters;
uint64_t runs;         // [run]: DeltaRun
uint64_t column_runs;  // [column]: DeltaColumn
uint64_t weights;      // delta_inputs: [channel][kTaps]; delta_scan: rates [value head], or 0; delta_output: gain
uint64_t bias;         // delta_inputs: [channel], or 0; delta_scan: [value head]; delta_output: skip [value head], or 0
uint64_t out_address;  // delta_output: a product's input, [column][out_stride], by store_input
uint mixed_stride;
uint slot_floats;
uint out_stride;
uint padded_width;
float epsilon;
uint unused;
