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
// {token, log-probability} of outputs of earlier steps; ColumnEntry::chosen is an index into it
uint64_t chosen;
// matrix units: the counters of the chain that begins behind this kernel, which sets them to zero
uint64_t chain_counts;
uint64_t chain_failed;
uint chain_links;
float scale;             // factor of the token's row
