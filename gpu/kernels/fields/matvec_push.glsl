uint64_t quants, high, scales, supers;
uint64_t x;
uint64_t out_address;
uint64_t parameters;
uint rows;          // of a result; kGated: the matrix has twice as many, the gate's first
uint groups;        // of 32 weights, in a row
uint x_stride;      // floats between columns
uint out_stride;
uint written_rows;  // rows, and then zeros up to here
uint count_word;    // which of the parameters' counts bounds the columns
uint64_t fused;     // a FusedOperands, or 0
