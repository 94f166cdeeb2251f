// These fields follow those of norm_push.glsl. With NormMakes::kAdded the kernel multiplies the sums by the next
// norm's gain and writes them as the next product's input, and `padded_width` is the padded width of that input.
uint64_t next_gain;   // [width]; 0: no product reads the sums
uint64_t next_input;  // [column][next_stride], by store_input
uint next_stride;
uint unused;
