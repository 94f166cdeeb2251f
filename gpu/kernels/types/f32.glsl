// F32.
vec4 scale_F32(Matrix row, uint group) { return vec4(0.0); }
vec4 decode_F32(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale) { return uintBitsToFloat(words); }
