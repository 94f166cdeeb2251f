// Shared by the kernels that compute checksums: adds sixteen bytes and their place to four sums.
#include "common.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Sums { uint v[]; };

uint mix_word(uint word, uint place) {  // Murmur3's finaliser
  uint h = word ^ place;
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  return h ^ (h >> 16);
}

uvec4 mixed_quad(uvec4 quad, uint64_t i) {
  uint place = uint(i) * 0x9e3779b9u + uint(i >> 32) * 0x7feb352du;
  return uvec4(mix_word(quad.x, place), mix_word(quad.y, place + 0x3c6ef372u), mix_word(quad.z, place + 0xa54ff53au),
               mix_word(quad.w, place + 0x510e527fu));
}
