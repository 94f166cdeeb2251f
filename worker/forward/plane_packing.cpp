// Packs rows of any tensor type into planes (gpu/kernels/weight_layout.hpp).
#include <algorithm>
#include <cstring>

#include "worker/forward/type_packing.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;
using k::types::kBitOfEach;
using k::types::kNibbleOfEach;
using k::types::kTwoBitsOfEach;
using k::types::store16;
using k::types::store32;
using k::types::store64;

constexpr std::uint32_t kGroup = k::kGroupWeights;

std::uint32_t groups_of(std::uint32_t width) {
  return (width + kGroup - 1) / kGroup;
}

// Gathers the lowest bit of each of eight bytes; the first byte's bit becomes the lowest.
std::uint32_t gather_bits(std::uint64_t bytes) {
  return static_cast<std::uint32_t>(((bytes & kBitOfEach) * 0x0102040810204080U) >> 56);
}

// Does the same for the lowest two bits.
std::uint32_t gather_two_bits(std::uint64_t bytes) {
  std::uint64_t x = bytes & kTwoBitsOfEach;
  x = (x | (x >> 6)) & 0x000f000f000f000fU;
  x = (x | (x >> 12)) & 0x000000ff000000ffU;
  return static_cast<std::uint32_t>((x | (x >> 24)) & 0xffffU);
}

// Packs float types: groups of 32 in sixteen-byte planes. Missing weights of the last group are zeros.
template <typename Type>
void pack_floats(const std::uint8_t* row, std::uint32_t width, std::uint8_t* to) {
  constexpr std::uint32_t kBytes = Type::kRow.block_bytes, kPlanes = Type::kRow.planes.quants;
  const std::uint32_t groups = groups_of(width);
  const std::uint64_t row_bytes = std::uint64_t{width} * kBytes;
  for (std::uint32_t plane = 0; plane < kPlanes; ++plane) {
    for (std::uint32_t group = 0; group < groups; ++group, to += 16) {
      const std::uint64_t from = std::uint64_t{group} * kGroup * kBytes + plane * 16;
      if (from + 16 <= row_bytes) {
        std::memcpy(to, row + from, 16);
      } else {
        std::memset(to, 0, 16);
        if (from < row_bytes) std::memcpy(to, row + from, row_bytes - from);
      }
    }
  }
}

// Calls each(block, group in the block, group in the row) for all groups.
template <typename Type, typename Each>
void for_groups(const std::uint8_t* row, std::uint32_t width, const Each& each) {
  constexpr std::uint32_t kGroups = Type::kRow.block_weights / kGroup;
  const std::uint32_t blocks = width / Type::kRow.block_weights;
  for (std::uint32_t b = 0; b < blocks; ++b, row += Type::kRow.block_bytes) {
    for (std::uint32_t group = 0; group < kGroups; ++group)
      each(row, group, b * kGroups + group);
  }
}

// Packs nibbles (byte i has weight i in its low half and weight i + 16 in its high half) or bytes (two planes).
template <typename Type>
void pack_quants(const std::uint8_t* row, std::uint32_t width, std::uint8_t* to) {
  const std::uint32_t groups = groups_of(width);
  for_groups<Type>(
      row, width, [&](const std::uint8_t* block, std::uint32_t group, std::uint64_t i) {
        if constexpr (Type::kRow.planes.quants == 2) {
          for (std::uint32_t q = 0; q < 4; ++q)
            store64(to + (q / 2 * groups + i) * 16 + q % 2 * 8, Type::eight(block, group, q));
        } else {
          for (std::uint32_t q = 0; q < 2; ++q) {
            store64(to + i * 16 + q * 8,
                    (Type::eight(block, group, q) & kNibbleOfEach) |
                        ((Type::eight(block, group, q + 2) & kNibbleOfEach) << 4));
          }
        }
      });
}

// Packs the bits that nibbles leave over, or all bits of types without nibbles: one bit or two of each weight, or two
// bits and one.
template <typename Type>
void pack_high(const std::uint8_t* row, std::uint32_t width, std::uint8_t* to) {
  constexpr std::uint32_t kBytes = Type::kRow.planes.high;
  constexpr std::uint32_t kShift = Type::kRow.planes.quants == 0 ? 0 : 4;
  for_groups<Type>(row, width,
                   [&](const std::uint8_t* block, std::uint32_t group, std::uint64_t i) {
                     std::uint32_t words[3] = {};
                     for (std::uint32_t q = 0; q < 4; ++q) {
                       const std::uint64_t bits = Type::eight(block, group, q) >> kShift;
                       if constexpr (kBytes == 4) {
                         words[0] |= gather_bits(bits) << (8 * q);
                       } else {
                         words[q / 2] |= gather_two_bits(bits) << (16 * (q % 2));
                         if constexpr (kBytes == 12) words[2] |= gather_bits(bits >> 2) << (8 * q);
                       }
                     }
                     std::memcpy(to + i * kBytes, words, kBytes);
                   });
}

// Writes zeros from the end of `blocks` times `bytes` to the next whole word.
void fill_word(std::uint8_t* to, std::uint64_t blocks, std::uint32_t bytes) {
  const std::uint64_t written = blocks * bytes;
  std::memset(to + written, 0, ((written + 3) & ~std::uint64_t{3}) - written);
}

template <typename Type>
void pack_scales(const std::uint8_t* row, std::uint32_t width, std::uint8_t* to) {
  constexpr std::uint32_t kBytes = Type::kRow.planes.scales * (Type::kRow.block_weights / kGroup);
  const std::uint32_t blocks = width / Type::kRow.block_weights;
  for (std::uint32_t b = 0; b < blocks; ++b, row += Type::kRow.block_bytes) {
    std::uint8_t* const at = to + std::uint64_t{b} * kBytes;
    if constexpr (requires { Type::scales(row, at); }) {
      Type::scales(row, at);
    } else {
      for (std::uint32_t i = 0; i < 16; ++i)
        at[i] = static_cast<std::uint8_t>(Type::sub_scale(row, i));
    }
  }
  fill_word(to, blocks, kBytes);
}

template <typename Type>
void pack_supers(const std::uint8_t* row, std::uint32_t width, std::uint8_t* to) {
  constexpr std::uint32_t kBytes = Type::kRow.planes.supers;
  const std::uint32_t blocks = width / Type::kRow.block_weights;
  for (std::uint32_t b = 0; b < blocks; ++b, row += Type::kRow.block_bytes) {
    std::uint8_t* const at = to + std::uint64_t{b} * kBytes;
    if constexpr (requires { Type::supers(row, at); }) {
      Type::supers(row, at);
    } else {
      store16(at, Type::super_scale(row));
    }
  }
  fill_word(to, blocks, kBytes);
}

template <typename Type>
constexpr RowPacking packing() {
  RowPacking made;
  if constexpr (Type::kRow.is_float()) {
    made.quants = pack_floats<Type>;
  } else {
    if constexpr (Type::kRow.planes.quants != 0) made.quants = pack_quants<Type>;
    if constexpr (Type::kRow.planes.high != 0) made.high = pack_high<Type>;
    if constexpr (Type::kRow.planes.scales != 0) made.scales = pack_scales<Type>;
    if constexpr (Type::kRow.planes.supers != 0) made.supers = pack_supers<Type>;
  }
  return made;
}

template <typename Type>
void floats(const std::uint8_t* row, std::uint64_t count, float* to) {
  for (std::uint64_t i = 0; i < count; ++i)
    to[i] = Type::value(row + i * Type::kRow.block_bytes);
}

template <typename Type>
constexpr ToFloats floats_of() {
  if constexpr (Type::kRow.is_float()) return floats<Type>;
  return nullptr;
}

constexpr RowPacking kPackings[] = {
#define BULKHEAD_TYPE(NAME) packing<k::types::NAME>(),
    BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
};
constexpr ToFloats kToFloats[] = {
#define BULKHEAD_TYPE(NAME) floats_of<k::types::NAME>(),
    BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
};

}  // namespace

const RowPacking& row_packing(k::TensorType type) {
  return kPackings[k::tensor_place(type)];
}

ToFloats to_floats_of(k::TensorType type) {
  return kToFloats[k::tensor_place(type)];
}

}  // namespace bulkhead::forward
