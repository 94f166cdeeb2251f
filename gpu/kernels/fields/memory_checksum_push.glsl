uint64_t source;
uint64_t sums;   // four words, zeroed
uint64_t quads;  // of 16 bytes
