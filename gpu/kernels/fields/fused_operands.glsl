// What a product of a step on a GPU needs in device memory besides its matrix and columns (epilogue.glsl).
uint64_t stream;      // [column][stream_stride]: the values that the input's norm refers to
uint64_t scales;      // [column], for kScaledByMemory
uint stream_width;
uint stream_stride;   // a multiple of four
float epsilon;
uint first_row;       // kQkv: the place of the matrix's rows among those of q, k and v
uint64_t next_gain;   // kAdd; 0: no product reads the result
uint64_t next_input;
uint next_stride;
uint rope_pairs;
uint64_t bias;        // kQkv: [q, k, v], or 0; with kBiased: of each row (experts: [expert][row])
uint64_t fine;        // as in RopeKvPush
uint64_t coarse;
uint64_t pages;
uint64_t keys;
uint64_t values;
uint64_t q;           // [column][head][head_padded]
float q_scale;
uint head;
uint heads;
uint kv_heads;
uint head_padded;
uint kv_float;
uint page_stride;     // by how many bytes a page's number counts
uint unused;
uint64_t second_bias;  // kGated: the biases of the ups; `bias` has those of the gates
