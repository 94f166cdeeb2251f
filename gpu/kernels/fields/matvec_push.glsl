uint64_t quants, high, scales, supers;
uint64_t x;
uint64_t out_address;
uint64_t parameters;
uint rows;          // per result; kGated: the matrix has twice as many, the gate's rows first
uint groups;        // per row; a group is 32 weights
uint x_stride;      // floats between columns
uint out_stride;
uint written_rows;  // rows, followed by zeros up to here
uint count_word;    // which of the parameters' counts is the number of columns
uint64_t fused;     // a FusedOperands, or 0
