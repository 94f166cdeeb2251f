// Q5_1: five bits in the mantissas of 32.
vec4 scale_Q5_1(Matrix row, uint group) { return scale_of_two_halves(row, group, -32.0); }
vec4 decode_Q5_1(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return scaled(numbers(nibbles(words.x, upper) | fifth_bits(high.x, quarter, upper), 5u), scale);
}
