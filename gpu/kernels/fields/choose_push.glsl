uint64_t logits;         // [column][experts, then the shared one's gate]
uint64_t chosen;         // [pair]: its expert
uint64_t weights;        // [column][kUsed, then the shared expert's]
uint64_t list;           // pairs, by expert
// How many tiles; from byte 16 on {expert, first place in the list, places, the first one's pair} each.
uint64_t tiles;
uint64_t parameters;
float scale;             // of all weights
uint unused;
uint64_t expert_scales;  // [expert], or 0
uint64_t choice_bias;    // [expert]: kByScores: of scores, for choosing alone; or 0
