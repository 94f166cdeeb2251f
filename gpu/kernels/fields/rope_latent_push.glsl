uint64_t q;         // [column][head][q_head]: plain entries, then kHead - kLatent that turn
uint64_t absorbed;  // [column][head][kLatent]
uint64_t row;       // [column][row_stride]: the latent, then entries that turn
uint64_t gain;      // [kLatent]
uint64_t fine;      // [256][pairs] of (cos, sin): the angle of position % 256
uint64_t coarse;    // [position / 256][pairs]
uint64_t parameters;
uint64_t pages;     // page tables
uint64_t keys;
uint64_t q_out;     // [column][head][kHeadPadded]
uint q_head;
uint row_stride;
uint rope_pairs;
float epsilon;
float q_scale;
uint unused;
