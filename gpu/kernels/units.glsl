// Products by matrix units (cooperative matrices, 16x8x16, halves in, float32 sums): how weights that are packed in
// the order of the unit's fragments (weight_layout.hpp) become fragments, and how a tile of a product is computed.
//
// A block is sixteen rows of the matrix, a group is 32 neighbouring k, and a stage is four groups. In a fragment of
// weights, lane 4 * r + q holds the unit's rows r and r + 8; these are the block's rows 2 * r and 2 * r + 1, so that
// its results are neighbours, too. (If a gate's and an up's rows alternate, these are a gate and its up.) From a
// group the lane takes k = 8 * q ... 8 * q + 7 of both rows. In a fragment of inputs it has the same k of column r:
// sixteen neighbouring bytes. Because both sides agree, we are free to choose which k goes into which slot of the
// unit. units_fragments.comp checks at the start that the device's fragments have this order.
//
// The source uses GL_NV_cooperative_matrix, which glslc supports; the build converts it to VK_KHR_cooperative_matrix
// (cmake/khr_matrices.cpp).
//
// The order of a result's additions: k is divided into segments of kSegmentStages stages. Within a segment there is
// one chain of the unit's multiply-adds, two per group, with groups in rising order. Then the segments' sums are
// added in rising order, in float32. Type and shape determine the segments. Nothing else affects the order: not how
// many columns or rows a subgroup takes, nor whether subgroups share a row's segments or one computes them all.
//
// A weight is the half nearest to its exact value, apart from the rounding of scale and minimum to halves: quants are
// exact, centred exactly, and then scaled by one multiplication or fma. The minima are those of the centred quants:
// the value of the middle one.
#include "unit_fragments.glsl"
#include "centred.glsl"

#include "constants/units.glsl"

#include "values/units.glsl"
const bool kMinima = kHasMinima != 0u;
const bool kSuper = kScales == kScaleSupers;
const bool kCodes = (kCodebook0 | kCodebook1 | kCodebook2 | kCodebook3) != 0u;
// The codebook is twice a float with one sign, two exponent and one mantissa bits (MXFP4): arithmetic gives its
// values faster than a look-up.
const bool kTinyFloats = kCodebook0 == 0x83828180u && kCodebook1 == 0x8c888684u && kCodebook2 == 0x7d7e7f80u &&
                         kCodebook3 == 0x74787a7cu;

// The bytes of a stage's parts, in their order: quants, high bits, scales, minima (weight_layout.hpp).
const uint kQuantBytes = kQuants == kHalves ? 4096u : kQuants == kBytes ? 2048u : 1024u;
const uint kHighBytes = kHighBits * 256u;
const uint kScaleBytes = kQuants == kHalves || kSuper ? 0u : kScales == kScaleSixteens ? 256u : 128u;
// kSuper: before two stages there are halves for 256 weights, and both stages' int8 scales.
const uint kHeaderBytes = 288;
const uint kPartBytes = kQuantBytes + kHighBytes + kScaleBytes * (kMinima ? 2u : 1u);
const uint kStageBytes = kSuper ? kHeaderBytes + 2u * kPartBytes : kPartBytes;

const uint kQuantWords = 32;

// A lane's share of some neighbouring groups of a block.
struct LaneWeights {
  uint quants[kQuantWords];
  uint high[4];
  // Halves of both rows, for each group; with kSuper, for the lane's own share of the stage's groups, after
  // prepare().
  uint scales[4];
  uint minima[4];
  uint d;      // kSuper
  uint first;  // of these groups, within the stage
};

uint64_t unit_block_bytes(uint groups) { return uint64_t(groups >> (kSuper ? 3 : 2)) * kStageBytes; }

// Stores a quad in four neighbouring words of an array. (If a function has an array as a parameter, glslc makes it
// copy the whole array in and out.)
#define TAKE_QUAD(words, first, quad) \
  words[first] = quad.x, words[(first) + 1u] = quad.y, words[(first) + 2u] = quad.z, words[(first) + 3u] = quad.w

// Loads `count` groups (1, 2 or 4) from `group` on, which is a multiple of `count`.
LaneWeights load_weights(const uint count, uint64_t block, uint group, uint lane) {
  LaneWeights w;
  uint within = count == 4u ? 0u : group & 3u;
  w.first = within;
  uint64_t stage = block + uint64_t(group >> (kSuper ? 3 : 2)) * kStageBytes;
  if (kQuants != kNibbles) {
    const uint quads = kQuants == kHalves ? 2u : 1u;
    uint64_t at = stage + within * (quads * 512u) + lane * 16u;
    [[unroll]] for (uint i = 0; i < count * quads; i++) {
      uvec4 quad = Quads(at).v[i * 32u];
      TAKE_QUAD(w.quants, i * 4u, quad);
    }
    if (kQuants == kHalves) return w;
  }
  uint r = lane >> 2;
  if (kQuants == kNibbles) {
    // The second of the pair of stages.
    uint second = kSuper ? (group >> 2) & 1u : 0u;
    uint64_t quants = stage + (kSuper ? kHeaderBytes : 0u) + second * kQuantBytes;
    if (count == 1u) {
      uvec2 pair = Pairs(quants + (within >> 1) * 512u + lane * 16u + (within & 1u) * 8u).v[0];
      w.quants[0] = pair.x;
      w.quants[1] = pair.y;
    } else {
      uint64_t at = quants + (within >> 1) * 512u + lane * 16u;
      [[unroll]] for (uint i = 0; i < count / 2u; i++) {
        uvec4 quad = Quads(at).v[i * 32u];
        TAKE_QUAD(w.quants, i * 4u, quad);
      }
    }
    uint64_t high = stage + (kSuper ? kHeaderBytes + 2u * kQuantBytes : kQuantBytes) + second * kHighBytes;
    if (kHighBits == 1u) {
      uint64_t at = high + lane * 8u;
      if (count == 4u) {
        uvec2 pair = Pairs(at).v[0];
        w.high[0] = pair.x;
        w.high[1] = pair.y;
      } else {
        w.high[0] = Words(at).v[within >> 1] >> ((within & 1u) * 8u);
      }
    }
    if (kHighBits == 2u) {
      uint64_t at = high + lane * 16u + within * 4u;
      if (count == 4u) {
        uvec4 quad = Quads(at).v[0];
        TAKE_QUAD(w.high, 0, quad);
      } else {
        [[unroll]] for (uint i = 0; i < count; i++) w.high[i] = Words(at).v[i];
      }
    }
    if (kSuper) {
      w.d = Words(stage).v[r];
      w.scales[0] = Words(stage + 32u + second * 128u).v[lane];
      return w;
    }
  }
  uint64_t scales = stage + (kQuantBytes + kHighBytes) + r * 16u + within * 4u;
  // Lanes with weights 16 ... 31 have other scales.
  if (kScales == kScaleSixteens) scales += (lane & 2u) * 64u;
  if (count == 4u) {
    uvec4 quad = Quads(scales).v[0];
    TAKE_QUAD(w.scales, 0, quad);
    if (kMinima) {
      quad = Quads(scales + kScaleBytes).v[0];
      TAKE_QUAD(w.minima, 0, quad);
    }
  } else {
    [[unroll]] for (uint i = 0; i < count; i++) {
      w.scales[i] = Words(scales).v[i];
      if (kMinima) w.minima[i] = Words(scales + kScaleBytes).v[i];
    }
  }
  return w;
}

// centred() for integers that lie four bits higher.
f16vec2 centred_high(uint word, const float bias) {
  precise f16vec2 n = fma(unpackFloat2x16(word), f16vec2(0.0625), f16vec2(-64.0 - bias));
  return n;
}

// kSuper: the scales of both rows for the lane's own share of the stage's groups, for all four lanes that share the
// rows: in scales[i] that of group 2 * i + q % 2 for weights 0..15 (q < 2) or 16..31.
void prepare(inout LaneWeights w) {
  if (!kSuper) return;
  uint word = w.scales[0];
  precise f16vec2 early = centred(word & 0x00ff00ffu | halves_of_1024, 128.0) * unpackFloat2x16(w.d);
  precise f16vec2 late = centred((word >> 8) & 0x00ff00ffu | halves_of_1024, 128.0) * unpackFloat2x16(w.d);
  w.scales[0] = packFloat2x16(early);
  w.scales[1] = packFloat2x16(late);
}

uint unit_codebook(uint index) {
  uint low = (index & 4u) != 0u ? kCodebook1 : kCodebook0;
  uint high = (index & 4u) != 0u ? kCodebook3 : kCodebook2;
  uint word = (index & 8u) != 0u ? high : low;
  return (word >> ((index & 3u) * 8u)) & 255u;
}

// Returns twice the four-bit floats that nibbles p of both halves of a word hold. A four-bit float's bits, as the upper
// bits of a half, are 2^-15 times that number (the smallest one is a subnormal half), so one multiplication gives it
// exactly.
f16vec2 tiny_floats(uint word, const uint p) {
  uint magnitude = p == 3u ? word >> 3 : word << (9u - 4u * p);
  uint sign = word << (12u - 4u * p);
  precise f16vec2 n = unpackFloat2x16(magnitude & 0x0e000e00u | sign & 0x80008000u) * float16_t(32768.0);
  return n;
}

// Unpacks a row's word of nibbles into pairs p = 0..3: weights 2 * p and 2 * p + 1 of the lane's eight. `high` has the
// further bits of these pairs, from bit 0 on.
void unpack_nibbles(uint word, uint high, f16vec2 scale, f16vec2 minimum, out f16vec2 pairs[4]) {
  const float bias = float(kBias);
  [[unroll]] for (uint p = 0; p < 4; p++) {
    uint w = p >= 2u ? word >> 8 : word;
    f16vec2 n;
    if (kTinyFloats) {
      n = tiny_floats(word, p);
    } else if (kCodes) {
      uint v = (p & 1u) != 0u ? w >> 4 : w;
      n = centred(unit_codebook(v & 15u) | (unit_codebook((v >> 16) & 15u) << 16) | halves_of_1024, bias);
    } else if ((p & 1u) == 0u) {
      uint bits = w & 0x000f000fu | halves_of_1024;
      if (kHighBits == 1u) bits |= ((p == 0u ? high << 4 : high << 2)) & 0x00100010u;
      if (kHighBits == 2u) bits |= (p == 0u ? high << 4 : high) & 0x00300030u;
      n = centred(bits, bias);
    } else {
      uint bits = w & 0x00f000f0u | halves_of_1024;
      if (kHighBits == 1u) bits |= ((p == 1u ? high << 7 : high << 5)) & 0x01000100u;
      if (kHighBits == 2u) bits |= (p == 1u ? high << 6 : high << 2) & 0x03000300u;
      n = centred_high(bits, bias);
    }
    precise f16vec2 weight;
    if (kMinima) {
      weight = fma(n, scale, minimum);
    } else {
      weight = n * scale;
    }
    pairs[p] = weight;
  }
}

// Unpacks a group's weights: the pairs of row r, and those of row r + 8.
void unpack_group(LaneWeights w, const uint group, uint lane, out f16vec2 low_row[4],
                  out f16vec2 high_row[4]) {
  if (kQuants == kHalves) {
    [[unroll]] for (uint j = 0; j < 2; j++) {
      low_row[j * 2u] = unpackFloat2x16(w.quants[group * 8u + j * 4u]);
      high_row[j * 2u] = unpackFloat2x16(w.quants[group * 8u + j * 4u + 1u]);
      low_row[j * 2u + 1u] = unpackFloat2x16(w.quants[group * 8u + j * 4u + 2u]);
      high_row[j * 2u + 1u] = unpackFloat2x16(w.quants[group * 8u + j * 4u + 3u]);
    }
    return;
  }
  if (kQuants == kBytes) {
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
  if (kSuper) {
    uint at = w.first + group;
    uint owner = (lane & 30u) | (at & 1u);
    // Where groups are taken one by one, `at` is not known when the kernel is compiled.
    scale = unpackFloat2x16(from_lane((at & 2u) != 0u ? w.scales[1] : w.scales[0], owner));
  } else {
    scale = unpackFloat2x16(w.scales[group]);
    if (kMinima) minimum = unpackFloat2x16(w.minima[group]);
  }
  if (kHighBits == 1u) {
    high_low = w.high[group / 2u] >> ((group & 1u) * 8u);
    high_high = high_low >> 4;
  }
  if (kHighBits == 2u) {
    high_low = w.high[group];
    high_high = high_low >> 8;
  }
  unpack_nibbles(w.quants[group * 2u], high_low, scale.xx, minimum.xx, low_row);
  unpack_nibbles(w.quants[group * 2u + 1u], high_high, scale.yy, minimum.yy, high_row);
}
