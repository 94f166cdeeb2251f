// Computes the sums of memory_checksum.comp over pieces of memory that a list names, with a workgroup for each piece.
// Several pieces may go into one sum, each with its own place, so that the result is the sum over all of them in a
// row.
#version 460
#include "checksum.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(PieceChecksumPush)
  uint64_t pieces;  // ChecksumPiece (checksum.hpp): {source, first place}, then {quads, which sum}
  uint64_t sums;    // four words each, zeroed
  FIELDS_END
} push;

layout(local_size_x = 256) in;

shared uint totals[4];

void main() {
  if (gl_LocalInvocationID.x < 4u) totals[gl_LocalInvocationID.x] = 0u;
  barrier();
  uint64_t piece = push.pieces + uint64_t(gl_WorkGroupID.x) * 24ul;
  uint64_t source = Longs(piece).v[0], place = Longs(piece).v[1];
  uvec2 sizes = long_at(piece, 2u);
  uvec4 sum = uvec4(0);
  for (uint i = gl_LocalInvocationID.x; i < sizes.x; i += 256u)
    sum += mixed_quad(Quads(source + uint64_t(i) * 16ul).v[0], place + i);
  for (uint i = 0u; i < 4u; i++) {
    atomicAdd(totals[i], sum[i]);
  }
  barrier();
  if (gl_LocalInvocationID.x < 4u)
    atomicAdd(Sums(push.sums + uint64_t(sizes.y) * 16ul).v[gl_LocalInvocationID.x], totals[gl_LocalInvocationID.x]);
}
