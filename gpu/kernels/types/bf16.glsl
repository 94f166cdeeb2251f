// BF16.
vec4 scale_BF16(Matrix row, uint group) { return vec4(0.0); }
vec4 decode_BF16(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
}
