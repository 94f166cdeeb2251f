// Q4_K: nibbles in the mantissas of 16.
vec4 scale_Q4_K(Matrix row, uint group) { return scale_of_packed(row, group, -16.0); }
vec4 decode_Q4_K(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return scaled(nibble_numbers(words.x, upper), scale);
}
