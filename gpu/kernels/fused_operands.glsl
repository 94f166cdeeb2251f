#ifndef FUSED_OPERANDS
#define FUSED_OPERANDS
// gpu/kernels/kernels.hpp: FusedOperands
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer FusedRef {
  uint64_t stream;     // [column][stream_stride]: what the input's norm is of
  uint64_t scales;     // [column], for kScaledByMemory
  uint stream_width;
  uint stream_stride;
  float epsilon;
  uint first_row;      // kQkv: where the matrix's rows stand among those of q, k and v
  uint64_t next_gain;  // kAdd; 0: the result is nobody's input
  uint64_t next_input;
  uint next_stride;
  uint rope_pairs;
  uint64_t bias;       // kQkv: [q, k, v], or 0; with kBiased of each row (experts: [expert][row])
  uint64_t fine, coarse;
  uint64_t pages;
  uint64_t keys, values;
  uint64_t q;          // [column][head][head_padded]
  float q_scale;
  uint head, heads, kv_heads;
  uint head_padded;
  uint kv_float;
  uint64_t second_bias;  // kGated: the ups'; `bias` has the gates'
};
#endif
