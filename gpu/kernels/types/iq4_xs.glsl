// IQ4_XS: the codebook's values plus 128 in the mantissas of 256.
vec4 scale_IQ4_XS(Matrix row, uint group) { return scale_of_bytes(row, group); }
vec4 decode_IQ4_XS(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return centred_and_scaled(numbers(codebook(nibbles(words.x, upper)), 8u), 384.0, scale);
}
