uint64_t partials;
uint64_t parameters;
uint64_t out_address;
uint out_stride;
uint padded_width;
uint64_t sinks;  // [head], for kSinks
