// What follows norm_push.glsl. With NormMakes::kAdded the sums times the next norm's gain become the next
// product's input, and `padded_width` is that input's.
uint64_t next_gain;   // [width]; 0: no product reads the sums
uint64_t next_input;  // [column][next_stride], by store_input
uint next_stride;
uint unused;
