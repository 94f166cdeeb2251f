uint64_t results;        // [column][kUsed][results_stride]
uint64_t weights;        // [column][kUsed, then the shared expert's]
uint64_t shared_result;  // [column][shared_stride], or 0
uint64_t out_address;    // [column][out_stride]
uint64_t parameters;
uint64_t next_gain;      // 0: no product reads the result
uint64_t next_input;
uint width;
uint padded_width;       // of the next input: zeros up to here
uint results_stride;
uint shared_stride;
uint out_stride;
uint next_stride;
