// IQ3_XXS: nibbles are codes, whose values plus 128 go into the mantissas of 256.
vec4 scale_IQ3_XXS(Matrix row, uint group) { return scale_of_bytes(row, group) * 0.25; }
vec4 decode_IQ3_XXS(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) {
  uvec4 codes = nibbles(words.x, upper);
  return centred_and_scaled(numbers(codebook(codes), 8u), 384.0, scale);
}
