// IQ4_NL: the codebook's values plus 128 in the mantissas of 256.
vec4 scale_IQ4_NL(Matrix row, uint group) { return scale_of_half(row, group, -384.0); }
vec4 decode_IQ4_NL(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return scaled(numbers(codebook(nibbles(words.x, upper)), 8u), scale);
}
