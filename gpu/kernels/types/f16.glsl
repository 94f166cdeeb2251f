// F16.
vec4 scale_F16(Matrix row, uint group) { return vec4(0.0); }
vec4 decode_F16(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
}
