// Q2_K: two bits in the mantissas of 4, all of them in the high plane; a byte of scale and minimum for each sixteen.
vec4 scale_Q2_K(Matrix row, uint group) {
  vec2 d = unpackHalf2x16(Words(row.supers).v[group >> 3]);
  uint word = Words(row.scales).v[group >> 1] >> ((group & 1u) * 16u);
  precise float s0 = d.x * float(word & 15u);
  precise float m0 = d.y * float((word >> 4) & 15u);
  precise float s1 = d.x * float((word >> 8) & 15u);
  precise float m1 = d.y * float((word >> 12) & 15u);
  precise float b0 = fma(-4.0, s0, -m0);
  precise float b1 = fma(-4.0, s1, -m1);
  return vec4(s0, b0, s1, b1);
}
vec4 decode_Q2_K(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return scaled(numbers(two_bits(high, quarter, upper), 2u), scale);
}
