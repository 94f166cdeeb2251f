// Products by matrix units (cooperative matrices, 16x8x16, halves in, float32 sums): how weights packed in the order of
// the unit's own fragments (weight_layout.hpp, UnitLayout) become fragments, and a tile of a product.
//
// A block is sixteen rows of the matrix, a group 32 neighbouring k, a stage four groups. In a fragment of weights, lane
// 4 * r + q holds the unit's rows r and r + 8: the block's rows 2 * r and 2 * r + 1, so that its results are neighbours, too.
// (Of a gate's and an up's rows in turn: a gate and its up.) Of a group it takes k = 8 * q ... 8 * q + 7 of both. In a fragment of inputs it has the
// same k of column r: sixteen neighbouring bytes. As both sides agree, which k goes to which slot of the unit is ours to
// choose. units_fragments.comp shows at start that the device's fragments are ordered so.
//
// The source says GL_NV_cooperative_matrix, which is what glslc knows; the build makes VK_KHR_cooperative_matrix of it
// (cmake/khr_matrices.cpp).
//
// Order of additions of a result: k in segments of kSegmentStages stages. Within a segment a chain of multiply-adds by the
// unit, two a group, groups in rising order. Then the segments' sums in rising order, in float32. Type and shape choose the
// segments; nothing else enters the order: not how many columns or rows a subgroup takes, nor whether subgroups share a
// row's segments or one makes them all.
//
// A weight is the half nearest to what its block says, up to the rounding of scale and minimum to halves: quants are exact,
// centred exactly, then scaled by one multiplication or fma. Minima are those of the centred quants: what the middle one stands for.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BULKHEAD_EMULATED_UNITS
#include "units_emulated.glsl"
#else
#extension GL_NV_cooperative_matrix : require
#define WeightFragment fcoopmatNV<16, gl_ScopeSubgroup, 16, 16>
#define InputFragment fcoopmatNV<16, gl_ScopeSubgroup, 16, 8>
#define SumFragment fcoopmatNV<32, gl_ScopeSubgroup, 16, 8>
#define no_sums() SumFragment(0.0)
#define multiply_add coopMatMulAddNV
#define unit_lane gl_SubgroupInvocationID
#define unit_subgroup gl_SubgroupID
#define from_lane subgroupShuffle
#endif

const uint kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ6_K = 14, kIQ4_NL = 20;

const uint kQuantWords = 32;

// What a lane holds of some neighbouring groups of a block.
struct LaneWeights {
  uint quants[kQuantWords];
  uint high[4];
  // Halves of both rows: of each group; Q6_K: of the lane's own share of the stage's groups, after prepare().
  uint scales[4];
  uint minima[4];
  uint d;      // Q6_K
  uint first;  // of these groups, within the stage
};

bool has_high(const uint type) { return type == kQ5_0 || type == kQ5_1; }
bool has_minima(const uint type) { return type == kQ4_1 || type == kQ5_1; }

// Bytes of a stage; Q6_K: of two, which share a header.
uint unit_stage_bytes(const uint type) {
  return type == kF16                        ? 4096u
         : type == kQ8_0                     ? 2176u
         : type == kQ4_0 || type == kIQ4_NL  ? 1152u
         : type == kQ4_1                     ? 1280u
         : type == kQ5_0                     ? 1408u
         : type == kQ5_1                     ? 1536u
                                             : 3360u;
}

uint64_t unit_block_bytes(const uint type, uint groups) {
  return uint64_t(groups >> (type == kQ6_K ? 3 : 2)) * unit_stage_bytes(type);
}

// `count` groups from `group` on, which is a multiple of it; 1, 2 or 4.
LaneWeights load_weights(const uint type, const uint count, uint64_t block, uint group, uint lane) {
  LaneWeights w;
  uint within = count == 4u ? 0u : group & 3u;
  w.first = within;
  uint64_t stage = block + uint64_t(group >> (type == kQ6_K ? 3 : 2)) * unit_stage_bytes(type);
  if (type == kF16 || type == kQ8_0) {
    const uint quads = type == kF16 ? 2u : 1u;
    uint64_t at = stage + within * (quads * 512u) + lane * 16u;
    [[unroll]] for (uint i = 0; i < count * quads; i++) {
      uvec4 quad = Quads(at).v[i * 32u];
      w.quants[i * 4u] = quad.x;
      w.quants[i * 4u + 1u] = quad.y;
      w.quants[i * 4u + 2u] = quad.z;
      w.quants[i * 4u + 3u] = quad.w;
    }
    if (type == kF16) return w;
  }
  uint r = lane >> 2;
  uint64_t scales = stage + 2048u + r * 16u + within * 4u;  // Q8_0
  if (type != kQ8_0) {
    uint half_super = type == kQ6_K ? (group >> 2) & 1u : 0u;
    uint64_t quants = stage + (type == kQ6_K ? 288u : 0u) + half_super * 1024u;
    if (count == 1u) {
      uvec2 pair = Pairs(quants + (within >> 1) * 512u + lane * 16u + (within & 1u) * 8u).v[0];
      w.quants[0] = pair.x;
      w.quants[1] = pair.y;
    } else {
      uint64_t at = quants + (within >> 1) * 512u + lane * 16u;
      [[unroll]] for (uint i = 0; i < count / 2u; i++) {
        uvec4 quad = Quads(at).v[i * 32u];
        w.quants[i * 4u] = quad.x;
        w.quants[i * 4u + 1u] = quad.y;
        w.quants[i * 4u + 2u] = quad.z;
        w.quants[i * 4u + 3u] = quad.w;
      }
    }
    uint64_t high = quants + 1024u;
    if (has_high(type)) {
      uint64_t at = high + lane * 8u;
      if (count == 4u) {
        uvec2 pair = Pairs(at).v[0];
        w.high[0] = pair.x;
        w.high[1] = pair.y;
      } else {
        w.high[0] = Words(at).v[within >> 1] >> ((within & 1u) * 8u);
      }
    }
    if (type == kQ6_K) {
      uint64_t at = stage + 2336u + half_super * 512u + lane * 16u + within * 4u;
      if (count == 4u) {
        uvec4 quad = Quads(at).v[0];
        w.high[0] = quad.x;
        w.high[1] = quad.y;
        w.high[2] = quad.z;
        w.high[3] = quad.w;
      } else {
        [[unroll]] for (uint i = 0; i < count; i++) w.high[i] = Words(at).v[i];
      }
      w.d = Words(stage).v[r];
      w.scales[0] = Words(stage + 32u + half_super * 128u).v[lane];
      return w;
    }
    if (type == kQ4_0 || type == kIQ4_NL || type == kQ4_1) scales = quants + 1024u + r * 16u + within * 4u;
    if (type == kQ5_0 || type == kQ5_1) scales = quants + 1280u + r * 16u + within * 4u;
  }
  if (count == 4u) {
    uvec4 quad = Quads(scales).v[0];
    w.scales[0] = quad.x;
    w.scales[1] = quad.y;
    w.scales[2] = quad.z;
    w.scales[3] = quad.w;
    if (has_minima(type)) {
      quad = Quads(scales + 128u).v[0];
      w.minima[0] = quad.x;
      w.minima[1] = quad.y;
      w.minima[2] = quad.z;
      w.minima[3] = quad.w;
    }
  } else {
    [[unroll]] for (uint i = 0; i < count; i++) {
      w.scales[i] = Words(scales).v[i];
      if (has_minima(type)) w.minima[i] = Words(scales + 128u).v[i];
    }
  }
  return w;
}

// 1024 in both halves of a word, of which the compiler must not know that it is one number: an instruction that masks by a
// number and adds by another takes only one of them as such, and would become two.
uint halves_of_1024;
void hide_constants(uint64_t address) {
  halves_of_1024 = 0x64006400u + ((unit_lane + uint(address >> 63)) >> 5);  // no address is that high
}

// Of integers in both halves of a word with halves_of_1024: less `bias`, exact.
f16vec2 centred(uint word, const float bias) {
  precise f16vec2 n = unpackFloat2x16(word) - f16vec2(1024.0 + bias);
  return n;
}
// The same for integers that lie four bits higher.
f16vec2 centred_high(uint word, const float bias) {
  precise f16vec2 n = fma(unpackFloat2x16(word), f16vec2(0.0625), f16vec2(-64.0 - bias));
  return n;
}

// Q6_K: the scales of both rows for the lane's own share of the stage's groups, for all four lanes that share the rows: in
// scales[i] that of group 2 * i + q % 2 for weights 0..15 (q < 2) or 16..31.
void prepare(const uint type, inout LaneWeights w) {
  if (type != kQ6_K) return;
  uint word = w.scales[0];
  precise f16vec2 early = centred(word & 0x00ff00ffu | halves_of_1024, 128.0) * unpackFloat2x16(w.d);
  precise f16vec2 late = centred((word >> 8) & 0x00ff00ffu | halves_of_1024, 128.0) * unpackFloat2x16(w.d);
  w.scales[0] = packFloat2x16(early);
  w.scales[1] = packFloat2x16(late);
}

uint unit_codebook(uint index) {
  uint low = (index & 4u) != 0u ? 0x766a5d4fu : 0x3f2d1801u;
  uint high = (index & 4u) != 0u ? 0xf1d9c5b5u : 0xa6998d81u;
  uint word = (index & 8u) != 0u ? high : low;
  return (word >> ((index & 3u) * 8u)) & 255u;
}

// Pairs p = 0..3 (k = 2 * p, 2 * p + 1 of the lane's eight) of a row from its word of nibbles. `high`: fifth bits of its
// pairs from bit 0 on, or Q6_K's two bits.
void unpack_nibbles(const uint type, uint word, uint high, f16vec2 scale, f16vec2 minimum, out f16vec2 pairs[4]) {
  const float bias = type == kQ4_0 || type == kQ4_1 ? 8.0 : type == kQ5_0 || type == kQ5_1 ? 16.0 : type == kQ6_K ? 32.0 : 0.0;
  [[unroll]] for (uint p = 0; p < 4; p++) {
    uint w = p >= 2u ? word >> 8 : word;
    f16vec2 n;
    if (type == kIQ4_NL) {
      uint v = (p & 1u) != 0u ? w >> 4 : w;
      n = centred(unit_codebook(v & 15u) | (unit_codebook((v >> 16) & 15u) << 16) | halves_of_1024, 128.0);
    } else if ((p & 1u) == 0u) {
      uint bits = w & 0x000f000fu | halves_of_1024;
      if (has_high(type)) bits |= ((p == 0u ? high << 4 : high << 2)) & 0x00100010u;
      if (type == kQ6_K) bits |= (p == 0u ? high << 4 : high) & 0x00300030u;
      n = centred(bits, bias);
    } else {
      uint bits = w & 0x00f000f0u | halves_of_1024;
      if (has_high(type)) bits |= ((p == 1u ? high << 7 : high << 5)) & 0x01000100u;
      if (type == kQ6_K) bits |= (p == 1u ? high << 6 : high << 2) & 0x03000300u;
      n = centred_high(bits, bias);
    }
    precise f16vec2 weight;
    if (has_minima(type)) {
      weight = fma(n, scale, minimum);
    } else {
      weight = n * scale;
    }
    pairs[p] = weight;
  }
}

// Of the j-th half of a group.
WeightFragment weight_fragment(f16vec2 low_row[4], f16vec2 high_row[4], const uint j) {
  WeightFragment a;
  a[0] = low_row[j * 2u].x;
  a[1] = low_row[j * 2u].y;
  a[2] = low_row[j * 2u + 1u].x;
  a[3] = low_row[j * 2u + 1u].y;
  a[4] = high_row[j * 2u].x;
  a[5] = high_row[j * 2u].y;
  a[6] = high_row[j * 2u + 1u].x;
  a[7] = high_row[j * 2u + 1u].y;
  return a;
}
InputFragment input_fragment(uvec4 x, const uint j) {
  InputFragment b;
  f16vec2 first = unpackFloat2x16(x[j * 2u]), second = unpackFloat2x16(x[j * 2u + 1u]);
  b[0] = first.x;
  b[1] = first.y;
  b[2] = second.x;
  b[3] = second.y;
  return b;
}

// A group's weights: row r's pairs and row r + 8's.
void unpack_group(const uint type, LaneWeights w, const uint group, uint lane, out f16vec2 low_row[4],
                  out f16vec2 high_row[4]) {
  if (type == kF16) {
    [[unroll]] for (uint j = 0; j < 2; j++) {
      low_row[j * 2u] = unpackFloat2x16(w.quants[group * 8u + j * 4u]);
      high_row[j * 2u] = unpackFloat2x16(w.quants[group * 8u + j * 4u + 1u]);
      low_row[j * 2u + 1u] = unpackFloat2x16(w.quants[group * 8u + j * 4u + 2u]);
      high_row[j * 2u + 1u] = unpackFloat2x16(w.quants[group * 8u + j * 4u + 3u]);
    }
    return;
  }
  if (type == kQ8_0) {
    f16vec2 scale = unpackFloat2x16(w.scales[group]);
    [[unroll]] for (uint p = 0; p < 4; p++) {
      uint a = w.quants[group * 4u + p / 2u], b = w.quants[group * 4u + 2u + p / 2u];
      if ((p & 1u) != 0u) {
        a >>= 8;
        b >>= 8;
      }
      precise f16vec2 low_weight = centred(a & 0x00ff00ffu | halves_of_1024, 128.0) * scale.xx;
      precise f16vec2 high_weight = centred(b & 0x00ff00ffu | halves_of_1024, 128.0) * scale.yy;
      low_row[p] = low_weight;
      high_row[p] = high_weight;
    }
    return;
  }
  f16vec2 scale, minimum = f16vec2(0.0);
  uint high_low = 0u, high_high = 0u;
  if (type == kQ6_K) {
    uint at = w.first + group;
    uint owner = (lane & 30u) | (at & 1u);
    // Where groups are taken one by one, `at` is not known when the kernel is compiled.
    scale = unpackFloat2x16(from_lane((at & 2u) != 0u ? w.scales[1] : w.scales[0], owner));
  } else {
    scale = unpackFloat2x16(w.scales[group]);
    if (has_minima(type)) minimum = unpackFloat2x16(w.minima[group]);
  }
  if (has_high(type)) {
    high_low = w.high[group / 2u] >> ((group & 1u) * 8u);
    high_high = high_low >> 4;
  }
  if (type == kQ6_K) {
    high_low = w.high[group];
    high_high = high_low >> 8;
  }
  unpack_nibbles(type, w.quants[group * 2u], high_low, scale.xx, minimum.xx, low_row);
  unpack_nibbles(type, w.quants[group * 2u + 1u], high_high, scale.yy, minimum.yy, high_row);
}
