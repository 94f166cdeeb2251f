uint64_t qkv;     // [column][in_stride]: q heads, k heads, v heads
uint64_t bias;    // the same order, or 0
uint64_t q_gain;  // [kHead], or 0: no per-head norm
uint64_t k_gain;
uint64_t fine;    // [256][pairs] of (cos, sin): the angle of position % 256
uint64_t coarse;  // [position / 256][pairs]
uint64_t parameters;
uint64_t pages;   // page tables
uint64_t keys;
uint64_t values;
uint64_t q_out;   // [column][head][kHeadPadded], times q_scale
uint in_stride;
uint rope_pairs;  // pairs of entries that rotate
float epsilon;
float q_scale;
