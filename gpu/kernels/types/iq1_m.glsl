// IQ1_M: codes of three bits, all in the high plane, whose values plus 128 go into the mantissas of 256.
vec4 scale_IQ1_M(Matrix row, uint group) { return scale_of_bytes(row, group) * 0.125; }
vec4 decode_IQ1_M(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  uvec4 codes = two_bits(high, quarter, upper) | (fifth_bits(high.z, quarter, upper) >> 2);
  return centred_and_scaled(numbers(codebook(codes), 8u), 384.0, scale);
}
