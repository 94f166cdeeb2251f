// Reads quantised weights in the layout of gpu/kernels/weight_layout.hpp and turns them into floats.
//
// A row is a whole number of groups of 32 weights. "Quarter" j of a group is weights 4j..4j+3. One fma gives the
// float nearest to each weight's exact value: a field of B bits n is put into the mantissa of 2^B, and weight = (2^B
// + n) * scale + bias, where the bias subtracts 2^B again.
//
// Each type has a file, types/NAME.glsl, which does this with the functions below:
//   vec4 scale_NAME(Matrix row, uint group)   (scale, bias) of a group's first sixteen weights in xy, of the others in
//                                             zw
//   vec4 decode_NAME(uvec4 words, uvec3 high, uint quarter, const bool upper, vec2 scale)   four weights; see
//                                             decode()
#include "constants/weights.glsl"

// BULKHEAD_WIDE_LOADS: loads of sixteen bytes suit the includer's device better than loads of eight.

struct Matrix {
  uint64_t quants;  // [row][plane][group] of 16 bytes
  uint64_t high;    // [row][group] of kHighBytes
  uint64_t scales;  // [row][group] of kScaleBytes
  uint64_t supers;  // [row][group / 8] of kSuperBytes
};

uint64_t whole_words(uint64_t bytes) { return (bytes + 3ul) & ~3ul; }

// One row's planes.
Matrix row_of(Matrix m, uint row, uint groups) {
  Matrix r;
  r.quants = m.quants + uint64_t(row) * (uint64_t(groups) * (16u * kPlanes));
  r.high = m.high + uint64_t(row) * (uint64_t(groups) * kHighBytes);
  r.scales = m.scales + uint64_t(row) * whole_words(uint64_t(groups) * kScaleBytes);
  r.supers = m.supers + uint64_t(row) * whole_words(uint64_t(groups >> 3) * kSuperBytes);
  return r;
}

float half_at(uint64_t base, uint index) {
  uint word = Words(base).v[index >> 1];
  return unpackHalf2x16((index & 1u) != 0u ? word >> 16 : word).x;
}

// --- scales

// A half for each group. `bias`: subtracts the mantissa's offset and the middle of the integers.
vec4 scale_of_half(Matrix row, uint group, const float bias) {
  float d = half_at(row.scales, group);
  precise float b = bias * d;
  return vec4(d, b, d, b);
}

// A half, and a half minimum, for each group.
vec4 scale_of_two_halves(Matrix row, uint group, const float bias) {
  vec2 dm = unpackHalf2x16(Words(row.scales).v[group]);
  precise float b = fma(bias, dm.x, dm.y);
  return vec4(dm.x, b, dm.x, b);
}

// Q4_K's and Q5_K's d, dmin and twelve bytes of packed scales and minima.
vec4 scale_of_packed(Matrix row, uint group, const float bias) {
#ifdef BULKHEAD_WIDE_LOADS
  uvec4 header = Quads(row.scales).v[group >> 3];
#else
  uvec4 header = uvec4(long_at(row.scales, (group >> 3) * 2u), long_at(row.scales, (group >> 3) * 2u + 1u));
#endif
  vec2 d = unpackHalf2x16(header.x);
  uint shift = (group & 3u) * 8u;
  uint low = header.y >> shift, middle = header.z >> shift, high = header.w >> shift;
  bool upper = (group & 4u) != 0u;
  uint scale = upper ? ((high & 15u) | ((low >> 2) & 48u)) : (low & 63u);
  uint minimum = upper ? (((high >> 4) & 15u) | ((middle >> 2) & 48u)) : (middle & 63u);
  precise float s = d.x * float(scale);
  precise float m = d.y * float(minimum);
  precise float b = fma(bias, s, -m);
  return vec4(s, b, s, b);
}

// An int8 for each sixteen weights, times a half for 256 weights.
vec4 scale_of_bytes(Matrix row, uint group) {
  float d = half_at(row.supers, group >> 3);
  uint word = Words(row.scales).v[group >> 1];
  int pair = int((group & 1u) != 0u ? word >> 16 : word);
  precise float s0 = d * float(bitfieldExtract(pair, 0, 8));
  precise float s1 = d * float(bitfieldExtract(pair, 8, 8));
  return vec4(s0, 0.0, s1, 0.0);
}

// --- integers

uvec4 nibbles(uint word, const bool upper) {
  uint w = upper ? word >> 4 : word;
  return uvec4(w & 15u, (w >> 8) & 15u, (w >> 16) & 15u, (w >> 24) & 15u);
}

// For types whose high plane has one bit for each weight: 16 in each.
uvec4 fifth_bits(uint bits, uint quarter, const bool upper) {
  uint h = bits >> (quarter * 4u + (upper ? 16u : 0u));
  return uvec4((h << 4) & 16u, (h << 3) & 16u, (h << 2) & 16u, (h << 1) & 16u);
}

// For types with two bits for each weight: from 0 to 3.
uvec4 two_bits(uvec3 high, uint quarter, const bool upper) {
  uint h = (upper ? high.y : high.x) >> (quarter * 8u);
  return uvec4(h & 3u, (h >> 2) & 3u, (h >> 4) & 3u, (h >> 6) & 3u);
}

// Returns the value of a nibble, plus 128.
uint codebook(uint index) {
  uint low = (index & 4u) != 0u ? kCodebook1 : kCodebook0;
  uint high = (index & 4u) != 0u ? kCodebook3 : kCodebook2;
  uint word = (index & 8u) != 0u ? high : low;
  return (word >> ((index & 3u) * 8u)) & 255u;
}
uvec4 codebook(uvec4 index) {
  return uvec4(codebook(index.x), codebook(index.y), codebook(index.z), codebook(index.w));
}

// --- floats of integers: in the mantissa of a power of two

float field(uint n, const uint bits) { return uintBitsToFloat(((127u + bits) << 23) | (n << (23u - bits))); }
vec4 numbers(uvec4 n, const uint bits) {
  return vec4(field(n.x, bits), field(n.y, bits), field(n.z, bits), field(n.w, bits));
}

// 16 + nibble.
vec4 nibble_numbers(uint w, const bool upper) {
  vec4 n;
  if (!upper) {
    n.x = uintBitsToFloat(0x41800000u | ((w << 19) & 0x00780000u));
    n.y = uintBitsToFloat(0x41800000u | ((w << 11) & 0x00780000u));
    n.z = uintBitsToFloat(0x41800000u | ((w << 3) & 0x00780000u));
    n.w = uintBitsToFloat(0x41800000u | ((w >> 5) & 0x00780000u));
  } else {
    n.x = uintBitsToFloat(0x41800000u | ((w << 15) & 0x00780000u));
    n.y = uintBitsToFloat(0x41800000u | ((w << 7) & 0x00780000u));
    n.z = uintBitsToFloat(0x41800000u | ((w >> 1) & 0x00780000u));
    n.w = uintBitsToFloat(0x41800000u | ((w >> 9) & 0x00780000u));
  }
  return n;
}

// 256 + 128 + signed byte.
vec4 byte_numbers(uint w) {
  w ^= 0x80808080u;
  vec4 n;
  n.x = uintBitsToFloat(0x43800000u | ((w << 15) & 0x007f8000u));
  n.y = uintBitsToFloat(0x43800000u | ((w << 7) & 0x007f8000u));
  n.z = uintBitsToFloat(0x43800000u | ((w >> 1) & 0x007f8000u));
  n.w = uintBitsToFloat(0x43800000u | ((w >> 9) & 0x007f8000u));
  return n;
}

// --- weights of them

vec4 scaled(vec4 n, vec2 scale) {
  precise vec4 weight = fma(n, vec4(scale.x), vec4(scale.y));
  return weight;
}

// For types whose offset must be subtracted first, exactly, so that the product is rounded only once.
vec4 centred_and_scaled(vec4 n, const float offset, vec2 scale) {
  precise vec4 centred = n - offset;
  precise vec4 weight = centred * scale.x;
  return weight;
}

#include "tensor_types.glsl"

#ifdef BULKHEAD_TYPE
const uint kType = BULKHEAD_TYPE;  // the module has this type alone
#else
#define kType kTensorType
#endif

// (scale, bias) of a group's first sixteen weights in xy, of the others in zw.
vec4 group_scale(Matrix row, uint group) {
  vec4 scale = vec4(0.0);
#define TYPE(place, NAME) if (kType == place) scale = scale_##NAME(row, group);
  TENSOR_TYPES
#undef TYPE
  return scale;
}

uvec3 group_high(Matrix row, uint group) {
  if (kHighBytes == 4u) return uvec3(Words(row.high).v[group], 0u, 0u);
  if (kHighBytes == 8u) return uvec3(long_at(row.high, group), 0u);
  if (kHighBytes == 12u) {
    return uvec3(Words(row.high).v[group * 3u], Words(row.high).v[group * 3u + 1u], Words(row.high).v[group * 3u + 2u]);
  }
  return uvec3(0u);
}

// Returns the words of quarter j of a group, from those sixteen bytes of its planes that contain it.
uvec4 words_of(uvec4 quad, uint j) {
  return kPlanes == 8u ? quad : kPlanes == 4u ? ((j & 1u) != 0u ? quad.zwzw : quad) : uvec4(quad[j & 3u], 0u, 0u, 0u);
}

// Returns quarter 4 * upper + quarter of a group. `words` are the words that contain it: one for quantised types
// (word `quarter` of its 16 bytes), two for 16-bit types, four for F32. `upper` is known when the shader is compiled;
// `quarter` need not be, so that loops over it can stay loops, because a JIT compiler's time grows with the code's
// size.
vec4 decode(uvec4 words, uvec3 high, uint quarter, const bool upper, vec4 scale) {
  vec2 own = upper ? scale.zw : scale.xy;
  vec4 weights = vec4(0.0);
#define TYPE(place, NAME) if (kType == place) weights = decode_##NAME(words, high, quarter, upper, own);
  TENSOR_TYPES
#undef TYPE
  return weights;
}
