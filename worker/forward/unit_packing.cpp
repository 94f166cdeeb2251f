#include "worker/forward/unit_packing.hpp"

#include <algorithm>
#include <cstring>

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;
using k::kUnitBlockRows;
using k::kUnitStageWeights;
using k::types::load64;
using k::types::store16;
using k::types::store32;
using k::types::store64;

constexpr std::uint32_t kStageGroups = kUnitStageWeights / k::kGroupWeights;

// Returns the first of the lanes 4 * (row / 2) ... + 3, which hold row `row` of a block and its neighbour.
constexpr std::uint32_t first_lane(std::uint32_t row) {
  return row / 2 * 4;
}

// Places the low nibbles of eight bytes in pairs: those of bytes 2p and 2p + 1 at bits 4p and 16 + 4p.
std::uint32_t nibble_pairs(std::uint64_t bytes) {
  const auto gather = [](std::uint64_t x) {
    x &= 0x000f000f000f000fU;
    x |= x >> 12;
    return static_cast<std::uint32_t>((x | (x >> 24)) & 0xffffU);
  };
  return gather(bytes) | (gather(bytes >> 8) << 16);
}

// Places each byte's lowest bit likewise, at bits p and 16 + p.
std::uint32_t bit_pairs(std::uint64_t bytes) {
  const auto gather = [](std::uint64_t x) {
    x &= 0x0001000100010001U;
    x |= x >> 15;
    return static_cast<std::uint32_t>((x | (x >> 30)) & 0xfU);
  };
  return gather(bytes) | (gather(bytes >> 8) << 16);
}

// Places each byte's lowest two bits likewise, at bits 2p and 16 + 2p.
std::uint32_t two_bit_pairs(std::uint64_t bytes) {
  const auto gather = [](std::uint64_t x) {
    x &= 0x0003000300030003U;
    x |= x >> 14;
    return static_cast<std::uint32_t>((x | (x >> 28)) & 0xffU);
  };
  return gather(bytes) | (gather(bytes >> 8) << 16);
}

// Layout: [group][half of the lane's eight][lane][16 bytes], with pairs of the even row and the odd row in turn.
template <typename Type>
void pack_floats(UnitRows rows, std::uint32_t width, std::uint8_t* to) {
  const std::uint32_t stages = (width + kUnitStageWeights - 1) / kUnitStageWeights;
  for (std::uint32_t group = 0; group < stages * kStageGroups; ++group, to += 1024) {
    const std::uint32_t first = group * k::kGroupWeights;
    const std::uint32_t count = first < width ? std::min(width - first, k::kGroupWeights) : 0;
    for (std::uint32_t row = 0; row < kUnitBlockRows; ++row) {
      std::uint16_t halves[32] = {};
      if (rows[row] != nullptr) {
        const auto* from = reinterpret_cast<const std::uint8_t*>(rows[row]) +
                           std::uint64_t{first} * Type::kRow.block_bytes;
        for (std::uint32_t i = 0; i < count; ++i)
          halves[i] = Type::half(from + i * Type::kRow.block_bytes);
      }
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

// The places of a stage's parts.
struct Stage {
  std::uint8_t *quants, *high, *scales;
};

template <typename Type>
Stage stage_at(std::uint8_t* to, std::uint32_t stage) {
  constexpr k::UnitForm kForm = Type::kRow.units;
  constexpr std::uint32_t kQuants = unit_quant_bytes(kForm), kHigh = unit_high_bytes(kForm);
  if constexpr (unit_stages_in_pairs(kForm)) {
    std::uint8_t* const pair = to + std::uint64_t{stage / 2} * unit_stage_bytes(kForm);
    const std::uint32_t second = stage % 2;
    return {pair + k::kUnitHeaderBytes + second * kQuants,
            pair + k::kUnitHeaderBytes + 2 * kQuants + second * kHigh, pair + 32 + second * 128};
  } else {
    std::uint8_t* const own = to + std::uint64_t{stage} * unit_stage_bytes(kForm);
    return {own, own + kQuants, own + kQuants + kHigh};
  }
}

// Writes the 32 integers of a group of a row. Those that do not exist are zeros already.
template <typename Type>
void pack_integers(const std::uint8_t* block, std::uint32_t in_block, std::uint32_t row,
                   std::uint32_t group, const Stage& stage) {
  constexpr k::UnitForm kForm = Type::kRow.units;
  for (std::uint32_t q = 0; q < 4; ++q) {
    const std::uint32_t lane = first_lane(row) + q;
    std::uint64_t x = Type::eight(block, in_block, q);
    if constexpr (kForm.quants == k::UnitQuants::kBytes) {
      x ^= 0x8080808080808080U;
      x = (x & 0xff0000ffff0000ffU) | ((x & 0x0000ff000000ff00U) << 8) |
          ((x >> 8) & 0x0000ff000000ff00U);
      store64(stage.quants + group * 512 + lane * 16 + (row & 1) * 8, x);
      continue;
    }
    store32(stage.quants + group / 2 * 512 + lane * 16 + (group & 1) * 8 + (row & 1) * 4,
            nibble_pairs(x));
    if constexpr (kForm.high_bits == 1) {
      std::uint8_t* word = stage.high + lane * 8 + group / 2 * 4;
      store32(word, k::types::load32(word) | bit_pairs(x >> 4)
                                                 << ((group & 1) * 8 + (row & 1) * 4));
    } else if constexpr (kForm.high_bits == 2) {
      std::uint8_t* word = stage.high + lane * 16 + group * 4;
      store32(word, k::types::load32(word) | two_bit_pairs(x >> 4) << ((row & 1) * 8));
    }
  }
}

// Writes a group's scales, and minima, of one row to [sixteen][row / 2][group][row % 2].
template <typename Type>
void pack_scales(const std::uint8_t* block, std::uint32_t in_block, std::uint32_t row,
                 std::uint32_t group, const Stage& stage) {
  constexpr k::UnitForm kForm = Type::kRow.units;
  constexpr std::uint32_t kSets = kForm.scales == k::UnitScales::kSixteens ? 2 : 1;
  for (std::uint32_t sixteen = 0; sixteen < kSets; ++sixteen) {
    const std::uint32_t at = sixteen * 128 + row / 2 * 16 + group * 4 + (row & 1) * 2;
    const k::UnitScale made = Type::unit_scale(block, in_block, sixteen);
    store16(stage.scales + at, made.scale);
    if constexpr (kForm.minima) store16(stage.scales + unit_scale_bytes(kForm) + at, made.minimum);
  }
}

// Writes the scales of a row's block to the header that a pair of stages shares. In each stage, lane q has the int8
// scales of groups q % 2 and q % 2 + 2, for the weights of its own half.
template <typename Type>
void pack_header(const std::uint8_t* block, std::uint32_t row, std::uint8_t* header) {
  store16(header + row / 2 * 4 + (row & 1) * 2, Type::super_scale(block));
  for (std::uint32_t i = 0; i < 16; ++i) {
    const std::uint32_t group = i / 2 % 4, half = i % 2;
    const std::uint32_t q = half * 2 + group % 2;
    header[32 + i / 8 * 128 + (first_lane(row) + q) * 4 + (row & 1) * 2 + group / 2] =
        static_cast<std::uint8_t>(Type::sub_scale(block, i) ^ 0x80);
  }
}

template <typename Type>
void pack_block(UnitRows rows, std::uint32_t width, std::uint8_t* to) {
  constexpr k::TensorRow kRow = Type::kRow;
  constexpr std::uint32_t kBlockGroups = kRow.block_weights / k::kGroupWeights;
  const std::uint32_t stages = (width + kUnitStageWeights - 1) / kUnitStageWeights;
  const std::uint32_t pieces = unit_stages_in_pairs(kRow.units) ? stages / 2 : stages;
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    std::memset(to + std::uint64_t{piece} * unit_stage_bytes(kRow.units), 0,
                unit_stage_bytes(kRow.units));
  }
  for (std::uint32_t number = 0; number < stages; ++number) {
    const Stage stage = stage_at<Type>(to, number);
    // Integers of eight bits are stored with 128 added, and so are the zeros of weights that do not exist.
    if constexpr (kRow.units.quants == k::UnitQuants::kBytes)
      std::memset(stage.quants, 0x80, unit_quant_bytes(kRow.units));
    for (std::uint32_t row = 0; row < kUnitBlockRows; ++row) {
      if (rows[row] == nullptr) continue;
      const auto* const from = reinterpret_cast<const std::uint8_t*>(rows[row]);
      for (std::uint32_t group = 0; group < kStageGroups; ++group) {
        const std::uint32_t index = number * kStageGroups + group;
        if (index * k::kGroupWeights >= width) break;
        const std::uint8_t* const block =
            from + std::uint64_t{index / kBlockGroups} * kRow.block_bytes;
        pack_integers<Type>(block, index % kBlockGroups, row, group, stage);
        if constexpr (unit_stages_in_pairs(kRow.units)) {
          if (index % kBlockGroups == 0) pack_header<Type>(block, row, stage.scales - 32);
        } else {
          pack_scales<Type>(block, index % kBlockGroups, row, group, stage);
        }
      }
    }
  }
}

using Pack = void (*)(UnitRows rows, std::uint32_t width, std::uint8_t* to);

template <typename Type>
constexpr Pack packing() {
  if constexpr (Type::kRow.is_float()) {
    return pack_floats<Type>;
  } else {
    return pack_block<Type>;
  }
}

constexpr Pack kPackings[] = {
#define BULKHEAD_TYPE(NAME) packing<k::types::NAME>(),
    BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
};

}  // namespace

void pack_unit_block(k::TensorType type, UnitRows rows, std::uint32_t width, std::byte* to) {
  kPackings[k::tensor_place(type)](rows, width, reinterpret_cast<std::uint8_t*>(to));
}

}  // namespace bulkhead::forward
