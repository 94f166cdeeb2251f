// Q3_K: three bits in the mantissas of 8, all of them in the high plane.
vec4 scale_Q3_K(Matrix row, uint group) { return scale_of_bytes(row, group); }
vec4 decode_Q3_K(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  uvec4 three_bits = two_bits(high, quarter, upper) | (fifth_bits(high.z, quarter, upper) >> 2);
  return centred_and_scaled(numbers(three_bits, 3u), 12.0, scale);
}
