// Q5_0: five bits in the mantissas of 32.
vec4 scale_Q5_0(Matrix row, uint group) { return scale_of_half(row, group, -48.0); }
vec4 decode_Q5_0(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return scaled(numbers(nibbles(words.x, upper) | fifth_bits(high.x, quarter, upper), 5u), scale);
}
