uint64_t in_address;   // [column][part][in_stride]: a column has as many parts as workgroups, usually one
uint64_t gain;         // [width]
uint64_t out_address;  // [column][part][out_stride], by store_input
uint64_t parameters;
uint64_t list;         // 0, or the column of each result
uint width;
uint in_stride;
uint out_stride;
uint padded_width;     // zeros up to here
uint count_word;       // which of the parameters' counts is the number of columns
float epsilon;
