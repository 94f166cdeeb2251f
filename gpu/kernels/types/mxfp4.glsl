// MXFP4: the codebook's values plus 128 in the mantissas of 256; a scale is the upper half of a float.
vec4 scale_MXFP4(Matrix row, uint group) {
  uint word = Words(row.scales).v[group >> 1];
  float scale = uintBitsToFloat((group & 1u) != 0u ? word & 0xffff0000u : word << 16);
  return vec4(scale, 0.0, scale, 0.0);
}
vec4 decode_MXFP4(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  return centred_and_scaled(numbers(codebook(nibbles(words.x, upper)), 8u), 384.0, scale);
}
