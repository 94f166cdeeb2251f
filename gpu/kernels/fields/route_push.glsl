uint64_t in_address;  // [column][in_stride]
uint64_t gain;        // [width]: the norm's
uint64_t router;      // [row][width]
uint64_t logits;      // [column][rows]
uint64_t scales;      // [column]: what the norm comes to, for products; or 0
uint64_t parameters;
uint64_t bias;        // [row]: of the logits; or 0
uint width;           // a multiple of four
uint in_stride;
uint rows;
float epsilon;
