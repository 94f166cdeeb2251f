uint64_t gate;         // [column][in_stride]
uint64_t up;           // [column][up_stride]; 0: all ones
uint64_t out_address;  // [column][out_stride], by store_input
uint64_t parameters;
uint width;
uint in_stride;
uint out_stride;
uint padded_width;
uint up_stride;
uint unused;
