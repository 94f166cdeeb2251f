// Four sums over memory that tell whether two lots of it are equal: each word is mixed with its place, so that words which
// change places, or change, are seen; the sums don't depend on the order in which invocations come to them.
#version 460
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  uint64_t source;
  uint64_t sums;   // four words, zeroed
  uint64_t quads;  // of 16 bytes
} push;

layout(local_size_x = 256) in;

layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Sums { uint v[]; };

shared uint totals[4];

uint mix_word(uint word, uint place) {  // Murmur3's finaliser
  uint h = word ^ place;
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  return h ^ (h >> 16);
}

void main() {
  if (gl_LocalInvocationID.x < 4u) totals[gl_LocalInvocationID.x] = 0u;
  barrier();
  uint64_t stride = uint64_t(gl_NumWorkGroups.x) * 256ul;
  uvec4 sum = uvec4(0);
  for (uint64_t i = uint64_t(gl_WorkGroupID.x) * 256ul + gl_LocalInvocationID.x; i < push.quads; i += stride) {
    uvec4 quad = Quads(push.source + i * 16ul).v[0];
    uint place = uint(i) * 0x9e3779b9u + uint(i >> 32) * 0x7feb352du;
    sum += uvec4(mix_word(quad.x, place), mix_word(quad.y, place + 0x3c6ef372u), mix_word(quad.z, place + 0xa54ff53au),
                 mix_word(quad.w, place + 0x510e527fu));
  }
  for (uint i = 0u; i < 4u; i++) {
    atomicAdd(totals[i], sum[i]);
  }
  barrier();
  if (gl_LocalInvocationID.x < 4u)
    atomicAdd(Sums(push.sums).v[gl_LocalInvocationID.x], totals[gl_LocalInvocationID.x]);
}
