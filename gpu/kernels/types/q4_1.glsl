// Q4_1: nibbles in the mantissas of 16.
vec4 scale_Q4_1(Matrix row, uint group) { return scale_of_two_halves(row, group, -16.0); }
vec4 decode_Q4_1(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return scaled(nibble_numbers(words.x, upper), scale);
}
