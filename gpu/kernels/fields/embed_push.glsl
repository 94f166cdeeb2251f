uint64_t quants, high, scales, supers;
uint64_t out_address;    // [column][stride]
uint64_t parameters;
uint groups;
uint width;
uint stride;
uint input_stride;
uint64_t gain;           // GPUs: the first norm's gain; 0: no input is made
// GPUs: the first product's input, which is the row times the gain: [column][input_stride], by store_input.
uint64_t input_address;
uint64_t chosen;         // {token, log-probability} of outputs of earlier steps; ColumnEntry::chosen counts in them
uint64_t chain_counts;   // matrix units: the chain that begins behind this kernel, whose counts it sets to zero
uint64_t chain_failed;
uint chain_links;
float scale;             // of the token's row
