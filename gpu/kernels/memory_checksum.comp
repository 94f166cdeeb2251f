// Computes four sums over memory that show whether two contents are equal. Each word is mixed with its place, so that
// changed or exchanged words are noticed. The sums don't depend on the order in which invocations run.
#version 460
#include "checksum.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(MemoryChecksumPush)
  uint64_t source;
  uint64_t sums;   // four words, zeroed
  uint64_t quads;  // of 16 bytes
  FIELDS_END
} push;

layout(local_size_x = 256) in;

shared uint totals[4];

void main() {
  if (gl_LocalInvocationID.x < 4u) totals[gl_LocalInvocationID.x] = 0u;
  barrier();
  uint64_t stride = uint64_t(gl_NumWorkGroups.x) * 256ul;
  uvec4 sum = uvec4(0);
  for (uint64_t i = uint64_t(gl_WorkGroupID.x) * 256ul + gl_LocalInvocationID.x; i < push.quads; i += stride) {
    sum += mixed_quad(Quads(push.source + i * 16ul).v[0], i);
  }
  for (uint i = 0u; i < 4u; i++) {
    atomicAdd(totals[i], sum[i]);
  }
  barrier();
  if (gl_LocalInvocationID.x < 4u)
    atomicAdd(Sums(push.sums).v[gl_LocalInvocationID.x], totals[gl_LocalInvocationID.x]);
}
