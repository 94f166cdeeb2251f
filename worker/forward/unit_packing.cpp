#include "worker/forward/unit_packing.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "worker/forward/weight_packing.hpp"

namespace bulkhead::forward {

using gpu::kernels::kUnitBlockRows;
using gpu::kernels::kUnitStageWeights;
using gpu::kernels::WeightType;

namespace {

constexpr std::uint32_t kStageGroups = kUnitStageWeights / 32;
using Rows = std::span<const std::byte* const, kUnitBlockRows>;

// Row `row` of a block is one of two that lanes 4 * (row / 2) ... + 3 hold.
constexpr std::uint32_t first_lane(std::uint32_t row) {
  return row / 2 * 4;
}

std::uint16_t load16(const std::uint8_t* from) {
  std::uint16_t value = 0;
  std::memcpy(&value, from, 2);
  return value;
}
std::uint32_t load32(const std::uint8_t* from) {
  std::uint32_t value = 0;
  std::memcpy(&value, from, 4);
  return value;
}
std::uint64_t load64(const std::uint8_t* from) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, 8);
  return value;
}
void store16(std::uint8_t* to, std::uint16_t value) {
  std::memcpy(to, &value, 2);
}
void store32(std::uint8_t* to, std::uint32_t value) {
  std::memcpy(to, &value, 4);
}
void store64(std::uint8_t* to, std::uint64_t value) {
  std::memcpy(to, &value, 8);
}

// The low nibbles of eight bytes, two by two: those of bytes 2p and 2p + 1 at bits 4p and 16 + 4p.
std::uint32_t nibble_pairs(std::uint64_t bytes) {
  const auto gather = [](std::uint64_t x) {
    x &= 0x000f000f000f000fU;
    x |= x >> 12;
    return static_cast<std::uint32_t>((x | (x >> 24)) & 0xffffU);
  };
  return gather(bytes) | (gather(bytes >> 8) << 16);
}

// The same for each byte's lowest bit, at bits p and 16 + p.
std::uint32_t bit_pairs(std::uint64_t bytes) {
  const auto gather = [](std::uint64_t x) {
    x &= 0x0001000100010001U;
    x |= x >> 15;
    return static_cast<std::uint32_t>((x | (x >> 30)) & 0xfU);
  };
  return gather(bytes) | (gather(bytes >> 8) << 16);
}

// The same for each byte's lowest two bits, at bits 2p and 16 + 2p.
std::uint32_t two_bit_pairs(std::uint64_t bytes) {
  const auto gather = [](std::uint64_t x) {
    x &= 0x0003000300030003U;
    x |= x >> 14;
    return static_cast<std::uint32_t>((x | (x >> 28)) & 0xffU);
  };
  return gather(bytes) | (gather(bytes >> 8) << 16);
}

// Eight bits to the lowest bits of eight bytes.
std::uint64_t spread_bits(std::uint32_t bits) {
  std::uint64_t x = bits & 0xffU;
  x = (x | (x << 28)) & 0x0000000f0000000fU;
  x = (x | (x << 14)) & 0x0003000300030003U;
  x = (x | (x << 7)) & 0x0101010101010101U;
  return x;
}

// --- float types

std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t a = bits & 0x7fffffffU;
  if (a > 0x7f800000U) return sign | 0x7e00U;
  if (a >= 0x477ff000U) return sign | 0x7bffU;  // would round beyond the largest
  if (a >= 0x38800000U) {
    const std::uint32_t r = a - 0x38000000U;
    return static_cast<std::uint16_t>(sign | ((r + 0xfffU + ((r >> 13) & 1U)) >> 13));
  }
  const float aligned = std::bit_cast<float>(a) + 0.5F;
  return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000U));
}

// A group's 32 halves of one row.
void load_halves(WeightType type, const std::byte* row, std::uint32_t width, std::uint32_t k,
                 std::uint16_t* halves) {
  const std::uint32_t count = k < width ? std::min(width - k, 32U) : 0;
  if (count < 32) std::memset(halves, 0, 64);
  switch (type) {
    case WeightType::kF16:
      if (count > 0) std::memcpy(halves, row + std::uint64_t{k} * 2, std::size_t{count} * 2);
      return;
    case WeightType::kBF16:
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t high =
            load16(reinterpret_cast<const std::uint8_t*>(row) + (std::uint64_t{k} + i) * 2);
        halves[i] = to_half(std::bit_cast<float>(high << 16));
      }
      return;
    default:
      for (std::uint32_t i = 0; i < count; ++i) {
        float value = 0;
        std::memcpy(&value, row + (std::uint64_t{k} + i) * 4, 4);
        halves[i] = to_half(value);
      }
  }
}

// [group][half of the lane's eight][lane][16 bytes]: pairs of the even row and the odd row in turn.
void pack_floats(WeightType type, Rows rows, std::uint32_t width, std::uint32_t stages,
                 std::uint8_t* to) {
  for (std::uint32_t group = 0; group < stages * kStageGroups; ++group, to += 1024) {
    for (std::uint32_t row = 0; row < kUnitBlockRows; ++row) {
      std::uint16_t halves[32] = {};
      if (rows[row] != nullptr) load_halves(type, rows[row], width, group * 32, halves);
      for (std::uint32_t q = 0; q < 4; ++q) {
        std::uint8_t* lane = to + (first_lane(row) + q) * 16 + (row & 1) * 4;
        std::uint32_t pairs[4];
        std::memcpy(pairs, halves + q * 8, 16);
        store32(lane, pairs[0]);
        store32(lane + 8, pairs[1]);
        store32(lane + 512, pairs[2]);
        store32(lane + 520, pairs[3]);
      }
    }
  }
}

// --- blocks of 32

struct SmallBlock {
  std::uint32_t bytes, quants, high, minimum;  // offsets; 0: none
};
SmallBlock small_block(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
      return {20, 4, 0, 2};
    case WeightType::kQ5_0:
      return {22, 6, 2, 0};
    case WeightType::kQ5_1:
      return {24, 8, 4, 2};
    case WeightType::kQ8_0:
      return {34, 2, 0, 0};
    default:
      return {18, 2, 0, 0};
  }
}

// A block's minimum as kernels take it: what the middle of its integers stands for. A scale that is
// rounded to a half is then off by a share of a weight's distance from the middle; from the minimum
// it would be twice as far, and the minimum, which is as large as the largest weight, would be
// rounded as coarsely.
std::uint16_t middle(float scale, float minimum, bool five_bits) {
  return to_half(minimum + scale * (five_bits ? 16.0F : 8.0F));
}

// A block's scale, and middle, of one row to [row / 2][group][row % 2].
void pack_small_scales(const SmallBlock& block, const std::uint8_t* from, std::uint32_t row,
                       std::uint32_t group, std::uint8_t* to) {
  const std::uint32_t at = row / 2 * 16 + group * 4 + (row & 1) * 2;
  store16(to + at, load16(from));
  if (block.minimum != 0) {
    store16(to + 128 + at, middle(half_to_float(load16(from)),
                                  half_to_float(load16(from + block.minimum)), block.high != 0));
  }
}

void pack_bytes(Rows rows, std::uint32_t width, std::uint32_t stages, std::uint8_t* to) {
  const SmallBlock block = small_block(WeightType::kQ8_0);
  for (std::uint32_t stage = 0; stage < stages; ++stage, to += 2176) {
    for (std::uint32_t row = 0; row < kUnitBlockRows; ++row) {
      for (std::uint32_t group = 0; group < kStageGroups; ++group) {
        const std::uint32_t index = stage * kStageGroups + group;
        const bool there = rows[row] != nullptr && index * 32 < width;
        const std::uint8_t* from =
            there ? reinterpret_cast<const std::uint8_t*>(rows[row]) + std::uint64_t{index} * 34
                  : nullptr;
        for (std::uint32_t q = 0; q < 4; ++q) {
          std::uint64_t x = there ? load64(from + block.quants + q * 8) : 0;
          x ^= 0x8080808080808080U;
          x = (x & 0xff0000ffff0000ffU) | ((x & 0x0000ff000000ff00U) << 8) |
              ((x >> 8) & 0x0000ff000000ff00U);
          store64(to + group * 512 + (first_lane(row) + q) * 16 + (row & 1) * 8, x);
        }
        if (there) {
          pack_small_scales(block, from, row, group, to + 2048);
        } else {
          store16(to + 2048 + row / 2 * 16 + group * 4 + (row & 1) * 2, 0);
        }
      }
    }
  }
}

void pack_nibbles(WeightType type, Rows rows, std::uint32_t width, std::uint32_t stages,
                  std::uint8_t* to) {
  const SmallBlock block = small_block(type);
  const std::uint32_t scales = block.high != 0 ? 1280 : 1024;
  const std::uint32_t stage_bytes = scales + (block.minimum != 0 ? 256 : 128);
  for (std::uint32_t stage = 0; stage < stages; ++stage, to += stage_bytes) {
    std::memset(to, 0, stage_bytes);
    for (std::uint32_t row = 0; row < kUnitBlockRows; ++row) {
      if (rows[row] == nullptr) continue;
      for (std::uint32_t group = 0; group < kStageGroups; ++group) {
        const std::uint32_t index = stage * kStageGroups + group;
        if (index * 32 >= width) break;
        const std::uint8_t* from =
            reinterpret_cast<const std::uint8_t*>(rows[row]) + std::uint64_t{index} * block.bytes;
        const std::uint32_t high = block.high != 0 ? load32(from + block.high) : 0;
        for (std::uint32_t q = 0; q < 4; ++q) {
          const std::uint32_t lane = first_lane(row) + q;
          const std::uint64_t x = load64(from + block.quants + (q & 1) * 8) >> (q >= 2 ? 4 : 0);
          store32(to + group / 2 * 512 + lane * 16 + (group & 1) * 8 + (row & 1) * 4,
                  nibble_pairs(x));
          if (block.high != 0) {
            std::uint8_t* word = to + 1024 + lane * 8 + group / 2 * 4;
            store32(word, load32(word) | bit_pairs(spread_bits(high >> (8 * q)))
                                             << ((group & 1) * 8 + (row & 1) * 4));
          }
        }
        pack_small_scales(block, from, row, group, to + scales);
      }
    }
  }
}

// --- blocks of 256: two stages

struct SixBits {
  std::uint8_t scale, minimum;
};
// Of group 0..7, from a block's twelve bytes.
SixBits six_bits(const std::uint8_t* packed, std::uint32_t group) {
  if (group < 4) {
    return {static_cast<std::uint8_t>(packed[group] & 63),
            static_cast<std::uint8_t>(packed[group + 4] & 63)};
  }
  return {static_cast<std::uint8_t>((packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4)),
          static_cast<std::uint8_t>((packed[group + 4] >> 4) | ((packed[group] >> 6) << 4))};
}

// Each group's scale and middle are multiplied out: the layout of Q4_1 or Q5_1.
void pack_q4_k(bool five_bits, Rows rows, std::uint32_t stages, std::uint8_t* to) {
  const std::uint32_t block_bytes = five_bits ? 176 : 144;
  const std::uint32_t scales = five_bits ? 1280 : 1024;
  const std::uint32_t stage_bytes = scales + 256;
  for (std::uint32_t stage = 0; stage < stages; ++stage, to += stage_bytes) {
    std::memset(to, 0, stage_bytes);
    for (std::uint32_t row = 0; row < kUnitBlockRows; ++row) {
      if (rows[row] == nullptr) continue;
      const std::uint8_t* from =
          reinterpret_cast<const std::uint8_t*>(rows[row]) + std::uint64_t{stage / 2} * block_bytes;
      const std::uint8_t* quants = from + (five_bits ? 48 : 16);
      const float d = half_to_float(load16(from)), minimum = half_to_float(load16(from + 2));
      for (std::uint32_t group = 0; group < kStageGroups; ++group) {
        const std::uint32_t in_block = stage % 2 * kStageGroups + group;
        const SixBits bits = six_bits(from + 4, in_block);
        const std::uint32_t at = scales + row / 2 * 16 + group * 4 + (row & 1) * 2;
        const float scale = d * static_cast<float>(bits.scale);
        store16(to + at, to_half(scale));
        store16(to + at + 128,
                middle(scale, -minimum * static_cast<float>(bits.minimum), five_bits));
        for (std::uint32_t q = 0; q < 4; ++q) {
          const std::uint32_t lane = first_lane(row) + q;
          const std::uint64_t x = load64(quants + in_block / 2 * 32 + q * 8) >> (in_block % 2 * 4);
          store32(to + group / 2 * 512 + lane * 16 + (group & 1) * 8 + (row & 1) * 4,
                  nibble_pairs(x));
          if (five_bits) {
            std::uint8_t* word = to + 1024 + lane * 8 + group / 2 * 4;
            store32(word, load32(word) | bit_pairs(load64(from + 16 + q * 8) >> in_block)
                                             << ((group & 1) * 8 + (row & 1) * 4));
          }
        }
      }
    }
  }
}

void pack_q6_k(Rows rows, std::uint32_t supers, std::uint8_t* to) {
  for (std::uint32_t super = 0; super < supers; ++super, to += 3360) {
    std::memset(to, 0, 3360);
    for (std::uint32_t row = 0; row < kUnitBlockRows; ++row) {
      if (rows[row] == nullptr) continue;
      const std::uint8_t* from =
          reinterpret_cast<const std::uint8_t*>(rows[row]) + std::uint64_t{super} * 210;
      store16(to + row / 2 * 4 + (row & 1) * 2, load16(from + 208));
      // Sixteen scales; in each stage lane q has those of groups q % 2 and q % 2 + 2, for the weights
      // of its own half.
      for (std::uint32_t i = 0; i < 16; ++i) {
        const std::uint32_t group = i / 2 % 4, half = i % 2;
        const std::uint32_t q = half * 2 + group % 2;
        to[32 + i / 8 * 128 + (first_lane(row) + q) * 4 + (row & 1) * 2 + group / 2] =
            static_cast<std::uint8_t>(from[192 + i] ^ 0x80);
      }
      for (std::uint32_t group = 0; group < 8; ++group) {
        const std::uint32_t in_half = group % 4;
        const std::uint8_t* low = from + group / 4 * 64 + (in_half & 1) * 32;
        const std::uint8_t* high = from + 128 + group / 4 * 32;
        for (std::uint32_t q = 0; q < 4; ++q) {
          const std::uint32_t lane = first_lane(row) + q;
          const std::uint64_t x = load64(low + q * 8) >> (in_half < 2 ? 0 : 4);
          store32(to + 288 + group / 2 * 512 + lane * 16 + (group & 1) * 8 + (row & 1) * 4,
                  nibble_pairs(x));
          std::uint8_t* word = to + 2336 + group / 4 * 512 + lane * 16 + in_half * 4;
          store32(word, load32(word) | two_bit_pairs(load64(high + q * 8) >> (2 * in_half))
                                           << ((row & 1) * 8));
        }
      }
    }
  }
}

}  // namespace

void pack_unit_block(WeightType type, Rows rows, std::uint32_t width, std::byte* to) {
  auto* const out = reinterpret_cast<std::uint8_t*>(to);
  const std::uint32_t stages = (width + kUnitStageWeights - 1) / kUnitStageWeights;
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      return pack_floats(type, rows, width, stages, out);
    case WeightType::kQ8_0:
      return pack_bytes(rows, width, stages, out);
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return pack_q4_k(type == WeightType::kQ5_K, rows, stages, out);
    case WeightType::kQ6_K:
      return pack_q6_k(rows, stages / 2, out);
    default:
      return pack_nibbles(type, rows, width, stages, out);
  }
}

}  // namespace bulkhead::forward
