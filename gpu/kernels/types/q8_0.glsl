// Q8_0: bytes in the mantissas of 256.
vec4 scale_Q8_0(Matrix row, uint group) { return scale_of_half(row, group, -384.0); }
vec4 decode_Q8_0(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return scaled(byte_numbers(words.x), scale);
}
