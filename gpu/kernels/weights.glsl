// Quantised weights as gpu/kernels/weight_layout.hpp lays them out, and how they become floats.
//
// A row is a whole number of groups of 32 weights. "Quarter" j of a group is weights 4j..4j+3. Every weight becomes the
// float nearest to what its block says, by one fma: a field of B bits n is put into the mantissa of 2^B, and
// weight = (2^B + n) * scale + bias, with the bias taking 2^B back.

const uint kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ4_K = 12, kQ5_K = 13,
           kQ6_K = 14, kIQ4_NL = 20, kBF16 = 30;

// BULKHEAD_WIDE_LOADS: the includer's device is best with loads of sixteen bytes, not eight.
// BULKHEAD_TYPE_CONSTANT: which specialisation constant says the type.
#ifndef BULKHEAD_TYPE_CONSTANT
#define BULKHEAD_TYPE_CONSTANT 0
#endif
layout(constant_id = BULKHEAD_TYPE_CONSTANT) const uint kType = 8;

const bool kIsFloat = kType == kF32 || kType == kF16 || kType == kBF16;
const bool kIsByte = kType == kQ8_0;
const bool kHasHigh = kType == kQ5_0 || kType == kQ5_1 || kType == kQ5_K || kType == kQ6_K;
const bool kIsSuper = kType == kQ4_K || kType == kQ5_K;
// Sixteen-byte planes of quants.
const uint kPlanes = kType == kF32 ? 8u : (kType == kF16 || kType == kBF16) ? 4u : kType == kQ8_0 ? 2u : 1u;

struct Matrix {
  uint64_t quants;  // [row][plane][group] of 16 bytes
  uint64_t high;    // [row][group] of 4 bytes, Q6_K 8
  uint64_t scales;  // Q*_0, IQ4_NL [row][group] of half; Q*_1 [row][group] of half2; *_K [row][group / 8] of 16 bytes
  uint64_t supers;  // Q6_K: [row][group / 8] of half
};

// How much of each plane one row takes, in bytes.
uint64_t quants_row(uint groups) { return uint64_t(groups) * (16u * kPlanes); }
uint64_t high_row(uint groups) { return uint64_t(groups) * (kType == kQ6_K ? 8u : 4u); }
uint64_t scales_row(uint groups) {
  return (kIsSuper || kType == kQ6_K)               ? uint64_t(groups) * 2u
         : (kType == kQ4_1 || kType == kQ5_1)       ? uint64_t(groups) * 4u
                                                    : uint64_t((groups + 1u) & ~1u) * 2u;
}
uint64_t supers_row(uint groups) { return uint64_t(((groups >> 3) + 1u) & ~1u) * 2u; }

// One row's planes.
Matrix row_of(Matrix m, uint row, uint groups) {
  Matrix r;
  r.quants = m.quants + uint64_t(row) * quants_row(groups);
  r.high = m.high + uint64_t(row) * high_row(groups);
  r.scales = m.scales + uint64_t(row) * scales_row(groups);
  r.supers = m.supers + uint64_t(row) * supers_row(groups);
  return r;
}

float half_at(uint64_t base, uint index) {
  uint word = Words(base).v[index >> 1];
  return unpackHalf2x16((index & 1u) != 0u ? word >> 16 : word).x;
}

// (scale, bias) of a group's first sixteen weights in xy, of the others in zw; they differ in Q6_K only.
vec4 group_scale(Matrix row, uint group) {
  if (kIsFloat) return vec4(0);
  if (kIsSuper) {
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
    precise float bias = fma(kType == kQ4_K ? -16.0 : -32.0, s, -m);
    return vec4(s, bias, s, bias);
  }
  if (kType == kQ6_K) {
    float d = half_at(row.supers, group >> 3);
    uint word = Words(row.scales).v[group >> 1];
    int pair = int((group & 1u) != 0u ? word >> 16 : word);
    precise float s0 = d * float(bitfieldExtract(pair, 0, 8));
    precise float s1 = d * float(bitfieldExtract(pair, 8, 8));
    return vec4(s0, 0.0, s1, 0.0);
  }
  if (kType == kQ4_1 || kType == kQ5_1) {
    vec2 dm = unpackHalf2x16(Words(row.scales).v[group]);
    precise float bias = fma(kType == kQ4_1 ? -16.0 : -32.0, dm.x, dm.y);
    return vec4(dm.x, bias, dm.x, bias);
  }
  float d = half_at(row.scales, group);
  precise float bias = (kType == kQ4_0 ? -24.0 : kType == kQ5_0 ? -48.0 : -384.0) * d;
  return vec4(d, bias, d, bias);
}

uvec2 group_high(Matrix row, uint group) {
  if (kType == kQ6_K) return long_at(row.high, group);
  if (kHasHigh) return uvec2(Words(row.high).v[group], 0u);
  return uvec2(0u);
}

// IQ4_NL's sixteen values, plus 128.
uint codebook(uint index) {
  uint low = (index & 4u) != 0u ? 0x766a5d4fu : 0x3f2d1801u;
  uint high = (index & 4u) != 0u ? 0xf1d9c5b5u : 0xa6998d81u;
  uint word = (index & 8u) != 0u ? high : low;
  return (word >> ((index & 3u) * 8u)) & 255u;
}

float field(uint n, const uint bits) { return uintBitsToFloat(((127u + bits) << 23) | (n << (23u - bits))); }

// Quarter 4 * upper + quarter of a group. `words`: the words it lies in: one for quantised types (word `quarter` of its
// 16 bytes), two for 16-bit ones, four for F32. `upper` is known when the shader is compiled; `quarter` need not be, so
// that loops over it can stay loops: a JIT's time goes with the code's size.
vec4 decode(uvec4 words, uvec2 high, uint quarter, const bool upper, vec4 scale) {
  if (kType == kF32) return uintBitsToFloat(words);
  if (kType == kF16) return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
  if (kType == kBF16) {
    return uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
  }
  vec2 sb = upper ? scale.zw : scale.xy;
  uint w = words.x;
  vec4 n;
  if (kType == kQ8_0) {
    w ^= 0x80808080u;
    n.x = uintBitsToFloat(0x43800000u | ((w << 15) & 0x007f8000u));
    n.y = uintBitsToFloat(0x43800000u | ((w << 7) & 0x007f8000u));
    n.z = uintBitsToFloat(0x43800000u | ((w >> 1) & 0x007f8000u));
    n.w = uintBitsToFloat(0x43800000u | ((w >> 9) & 0x007f8000u));
  } else if (kType == kQ4_0 || kType == kQ4_1 || kType == kQ4_K) {
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
  } else {
    uint nibbles = upper ? w >> 4 : w;
    uvec4 q = uvec4(nibbles & 15u, (nibbles >> 8) & 15u, (nibbles >> 16) & 15u, (nibbles >> 24) & 15u);
    if (kType == kIQ4_NL) {
      n = vec4(field(codebook(q.x), 8u), field(codebook(q.y), 8u), field(codebook(q.z), 8u), field(codebook(q.w), 8u));
    } else if (kType == kQ6_K) {
      uint h = (upper ? high.y : high.x) >> (quarter * 8u);
      q |= uvec4((h << 4) & 48u, (h << 2) & 48u, h & 48u, (h >> 2) & 48u);
      n = vec4(field(q.x, 6u), field(q.y, 6u), field(q.z, 6u), field(q.w, 6u));
    } else {
      uint h = high.x >> (quarter * 4u + (upper ? 16u : 0u));
      q |= uvec4((h << 4) & 16u, (h << 3) & 16u, (h << 2) & 16u, (h << 1) & 16u);
      n = vec4(field(q.x, 5u), field(q.y, 5u), field(q.z, 5u), field(q.w, 5u));
    }
  }
  // An 8-bit scale times 6 bits and half a mantissa of offset need more than 24 bits: the offset goes first, exactly.
  if (kType == kQ6_K) {
    precise vec4 centred = n - 96.0;
    precise vec4 six_bit = centred * sb.x;
    return six_bit;
  }
  precise vec4 weight = fma(n, vec4(sb.x), vec4(sb.y));
  return weight;
}
