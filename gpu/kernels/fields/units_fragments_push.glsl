uint64_t a;            // [16][16] halves
uint64_t b;            // [16][8] halves
uint64_t c;            // [16][8] floats
uint64_t out_address;  // [16][8] floats: a * b + c
