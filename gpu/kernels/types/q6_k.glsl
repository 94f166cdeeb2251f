// Q6_K: six bits in the mantissas of 64. An 8-bit scale times 6 bits and half a mantissa of offset need more than 24
// bits, so the offset is subtracted first, exactly.
vec4 scale_Q6_K(Matrix row, uint group) { return scale_of_bytes(row, group); }
vec4 decode_Q6_K(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  uvec4 six_bits = nibbles(words.x, upper) | (two_bits(high, quarter, upper) << 4);
  return centred_and_scaled(numbers(six_bits, 6u), 96.0, scale);
}
