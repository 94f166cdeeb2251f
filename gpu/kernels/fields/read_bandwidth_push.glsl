uint64_t source;
uint64_t sink;        // four bytes
uint quads;           // of 16 bytes, in all
uint per_invocation;  // a multiple of four
