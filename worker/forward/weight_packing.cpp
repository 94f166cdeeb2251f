#include "worker/forward/weight_packing.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <thread>

#include "worker/forward/unit_packing.hpp"

namespace bulkhead::forward {

using gpu::kernels::WeightLayout;
using gpu::kernels::WeightType;

struct PackedMatrix::Plane {
  enum Kind { kQuants, kHigh, kScales, kSupers } kind;
  std::uint64_t start, row_bytes;
};

namespace {

// Byte offsets within the file's blocks.
struct BlockShape {
  std::uint32_t bytes, weights;
  std::uint32_t quants, high, scales, scale_bytes;
};

BlockShape block_shape(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
    case WeightType::kIQ4_NL:
      return {18, 32, 2, 0, 0, 2};
    case WeightType::kQ4_1:
      return {20, 32, 4, 0, 0, 4};
    case WeightType::kQ5_0:
      return {22, 32, 6, 2, 0, 2};
    case WeightType::kQ5_1:
      return {24, 32, 8, 4, 0, 4};
    case WeightType::kQ8_0:
      return {34, 32, 2, 0, 0, 2};
    case WeightType::kQ4_K:
      return {144, 256, 16, 0, 0, 16};
    case WeightType::kQ5_K:
      return {176, 256, 48, 16, 0, 16};
    case WeightType::kQ6_K:
      return {210, 256, 0, 128, 192, 16};
    default:
      return {};
  }
}

// Float types: groups of 32 in sixteen-byte planes; the last group's missing weights are zeros.
void pack_floats(const std::byte* row, std::uint32_t width, std::uint32_t weight_bytes,
                 std::uint32_t groups, std::byte* to) {
  const std::uint32_t per_quad = 16 / weight_bytes;
  const std::uint32_t planes = 32 / per_quad;
  const std::uint64_t row_bytes = std::uint64_t{width} * weight_bytes;
  for (std::uint32_t plane = 0; plane < planes; ++plane) {
    for (std::uint32_t group = 0; group < groups; ++group, to += 16) {
      const std::uint64_t from = (std::uint64_t{group} * 32 + plane * per_quad) * weight_bytes;
      if (from + 16 <= row_bytes) {
        std::memcpy(to, row + from, 16);
      } else {
        std::memset(to, 0, 16);
        if (from < row_bytes) std::memcpy(to, row + from, row_bytes - from);
      }
    }
  }
}

// 32 values of four bits, in two byte arrays of their nibbles' sources, to byte i = weight i |
// weight i + 16 << 4.
template <int kShift>
void pack_nibbles(const std::uint8_t* quants, std::uint8_t* to) {
  for (int i = 0; i < 16; ++i) {
    to[i] = static_cast<std::uint8_t>(((quants[i] >> kShift) & 15) |
                                      (((quants[i + 16] >> kShift) & 15) << 4));
  }
}

void pack_quants(WeightType type, const std::byte* row, std::uint32_t groups, std::byte* to) {
  const BlockShape block = block_shape(type);
  const auto* from = reinterpret_cast<const std::uint8_t*>(row);
  auto* out = reinterpret_cast<std::uint8_t*>(to);
  switch (type) {
    case WeightType::kQ8_0:
      for (std::uint32_t group = 0; group < groups; ++group) {
        const std::uint8_t* quants = from + std::uint64_t{group} * block.bytes + block.quants;
        std::memcpy(out + std::uint64_t{group} * 16, quants, 16);
        std::memcpy(out + (std::uint64_t{groups} + group) * 16, quants + 16, 16);
      }
      return;
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      for (std::uint32_t group = 0; group < groups; ++group, out += 16) {
        const std::uint8_t* quants =
            from + std::uint64_t{group / 8} * block.bytes + block.quants + (group % 8) / 2 * 32;
        if (group % 2 == 0) {
          pack_nibbles<0>(quants, out);
        } else {
          pack_nibbles<4>(quants, out);
        }
      }
      return;
    case WeightType::kQ6_K:
      for (std::uint32_t group = 0; group < groups; ++group, out += 16) {
        const std::uint32_t in_half = group % 4;
        const std::uint8_t* quants = from + std::uint64_t{group / 8} * block.bytes + block.quants +
                                     (group % 8) / 4 * 64 + (in_half & 1) * 32;
        if (in_half < 2) {
          pack_nibbles<0>(quants, out);
        } else {
          pack_nibbles<4>(quants, out);
        }
      }
      return;
    default:
      for (std::uint32_t group = 0; group < groups; ++group, out += 16) {
        std::memcpy(out, from + std::uint64_t{group} * block.bytes + block.quants, 16);
      }
  }
}

void pack_high(WeightType type, const std::byte* row, std::uint32_t groups, std::byte* to) {
  const BlockShape block = block_shape(type);
  const auto* from = reinterpret_cast<const std::uint8_t*>(row);
  for (std::uint32_t group = 0; group < groups; ++group) {
    if (type == WeightType::kQ5_K) {
      const std::uint8_t* high = from + std::uint64_t{group / 8} * block.bytes + block.high;
      std::uint32_t bits = 0;
      for (std::uint32_t i = 0; i < 32; ++i)
        bits |= ((high[i] >> (group % 8)) & 1U) << i;
      std::memcpy(to + std::uint64_t{group} * 4, &bits, 4);
    } else if (type == WeightType::kQ6_K) {
      const std::uint8_t* high =
          from + std::uint64_t{group / 8} * block.bytes + block.high + (group % 8) / 4 * 32;
      std::uint32_t words[2] = {};
      for (std::uint32_t i = 0; i < 32; ++i)
        words[i / 16] |= ((high[i] >> (2 * (group % 4))) & 3U) << (2 * (i % 16));
      std::memcpy(to + std::uint64_t{group} * 8, words, 8);
    } else {
      std::memcpy(to + std::uint64_t{group} * 4,
                  from + std::uint64_t{group} * block.bytes + block.high, 4);
    }
  }
}

void pack_scales(WeightType type, const std::byte* row, std::uint32_t width,
                 std::uint64_t row_bytes, std::byte* to) {
  const BlockShape block = block_shape(type);
  const std::uint32_t blocks = width / block.weights;
  std::uint64_t written = 0;
  for (std::uint32_t b = 0; b < blocks; ++b, written += block.scale_bytes) {
    std::memcpy(to + written, row + std::uint64_t{b} * block.bytes + block.scales,
                block.scale_bytes);
  }
  std::memset(to + written, 0, row_bytes - written);
}

void pack_supers(const std::byte* row, std::uint32_t width, std::uint64_t row_bytes,
                 std::byte* to) {
  std::uint64_t written = 0;
  for (std::uint32_t b = 0; b < width / 256; ++b, written += 2) {
    std::memcpy(to + written, row + std::uint64_t{b} * 210 + 208, 2);
  }
  std::memset(to + written, 0, row_bytes - written);
}

// Calls work(first, count) for stretches of [0, total), on several threads when there is enough to
// do.
template <typename Work>
void in_parallel(std::uint64_t total, std::uint64_t bytes, const Work& work) {
  constexpr std::uint64_t kBytesWorthAThread = 1U << 20;
  const std::uint64_t wanted = std::min<std::uint64_t>(
      {bytes / kBytesWorthAThread, std::thread::hardware_concurrency(), 12, total});
  if (wanted < 2) {
    work(0, total);
    return;
  }
  std::vector<std::jthread> threads;
  const std::uint64_t each = (total + wanted - 1) / wanted;
  for (std::uint64_t first = each; first < total; first += each) {
    threads.emplace_back(
        [&work, first, count = std::min(each, total - first)] { work(first, count); });
  }
  work(0, std::min(each, total));
}

}  // namespace

PackedMatrix::PackedMatrix(std::vector<const model::TensorInfo*> tensors,
                           std::vector<RowOrder> orders, Packing packing)
    : tensors_(std::move(tensors)), orders_(std::move(orders)), packing_(packing) {
  orders_.resize(tensors_.size());
  type_ = weight_type(tensors_.front()->type);
  width_ = static_cast<std::uint32_t>(tensors_.front()->ne[0]);
  std::uint64_t rows = 0;
  for (const model::TensorInfo* tensor : tensors_)
    rows += tensor->rows();
  layout_ = packing == Packing::kPlanes ? gpu::kernels::weight_layout(type_, rows, width_)
                                        : gpu::kernels::unit_layout(type_, rows, width_);
}

const std::byte* PackedMatrix::row_data(std::uint64_t row) const {
  if (packing_ == Packing::kUnitsAlternating) {
    const model::TensorInfo* const tensor = tensors_[row % 2];
    return row < layout_.rows ? tensor->data.data() + row / 2 * tensor->row_bytes() : nullptr;
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const model::TensorInfo* const tensor = tensors_[i];
    if (row < tensor->rows()) {
      return tensor->data.data() + orders_[i].source(row) * tensor->row_bytes();
    }
    row -= tensor->rows();
  }
  return nullptr;
}

void PackedMatrix::fill_rows(const Plane& plane, std::uint64_t first, std::uint64_t count,
                             std::byte* to) const {
  for (std::uint64_t row = first; row < first + count; ++row, to += plane.row_bytes) {
    const std::byte* from = row_data(row);
    switch (plane.kind) {
      case Plane::kQuants:
        if (type_ == WeightType::kF32) {
          pack_floats(from, width_, 4, layout_.groups, to);
        } else if (type_ == WeightType::kF16 || type_ == WeightType::kBF16) {
          pack_floats(from, width_, 2, layout_.groups, to);
        } else {
          pack_quants(type_, from, layout_.groups, to);
        }
        break;
      case Plane::kHigh:
        pack_high(type_, from, layout_.groups, to);
        break;
      case Plane::kScales:
        pack_scales(type_, from, width_, plane.row_bytes, to);
        break;
      case Plane::kSupers:
        pack_supers(from, width_, plane.row_bytes, to);
        break;
    }
  }
}

void PackedMatrix::fill_block(std::uint64_t block, std::byte* to) const {
  std::array<const std::byte*, gpu::kernels::kUnitBlockRows> rows;
  for (std::uint64_t i = 0; i < rows.size(); ++i)
    rows[i] = row_data(block * rows.size() + i);
  pack_unit_block(type_, rows, width_, to);
}

void PackedMatrix::fill_blocks(std::uint64_t offset, std::span<std::byte> piece) const {
  const std::uint64_t bytes = layout_.block_bytes;
  const std::uint64_t end = offset + piece.size();
  // Blocks that the piece's borders cut are made whole and copied in part.
  std::vector<std::byte> cut;
  const auto copy_part = [&](std::uint64_t from, std::uint64_t to) {
    cut.resize(bytes);
    fill_block(from / bytes, cut.data());
    std::memcpy(piece.data() + (from - offset), cut.data() + from % bytes, to - from);
  };
  const std::uint64_t first = (offset + bytes - 1) / bytes, last = end / bytes;
  if (first > last) return copy_part(offset, end);
  if (first * bytes > offset) copy_part(offset, first * bytes);
  in_parallel(last - first, (last - first) * bytes, [&](std::uint64_t from, std::uint64_t count) {
    for (std::uint64_t block = first + from; block < first + from + count; ++block)
      fill_block(block, piece.data() + (block * bytes - offset));
  });
  if (last * bytes < end) copy_part(last * bytes, end);
}

void PackedMatrix::fill(std::uint64_t offset, std::span<std::byte> piece) const {
  if (piece.empty()) return;
  if (packing_ != Packing::kPlanes) return fill_blocks(offset, piece);
  const Plane planes[] = {{Plane::kQuants, layout_.quants, layout_.quants_row},
                          {Plane::kHigh, layout_.high, layout_.high_row},
                          {Plane::kScales, layout_.scales, layout_.scales_row},
                          {Plane::kSupers, layout_.supers, layout_.supers_row}};
  std::uint64_t at = offset;
  const std::uint64_t end = offset + piece.size();
  std::vector<std::byte> cut_row;
  for (const Plane& plane : planes) {
    const std::uint64_t plane_end = plane.start + plane.row_bytes * layout_.rows;
    if (plane.row_bytes == 0 || plane_end <= at) continue;
    if (at < plane.start && at < end) {  // the gap before it
      const std::uint64_t gap = std::min(plane.start, end) - at;
      std::memset(piece.data() + (at - offset), 0, gap);
      at += gap;
    }
    // A row that the piece's border cuts is made whole and copied in part.
    const auto copy_part = [&] {
      const std::uint64_t row = (at - plane.start) / plane.row_bytes;
      const std::uint64_t skip = (at - plane.start) % plane.row_bytes;
      const std::uint64_t count = std::min(plane.row_bytes - skip, end - at);
      cut_row.resize(plane.row_bytes);
      fill_rows(plane, row, 1, cut_row.data());
      std::memcpy(piece.data() + (at - offset), cut_row.data() + skip, count);
      at += count;
    };
    if (at < end && at < plane_end && (at - plane.start) % plane.row_bytes != 0) copy_part();
    if (at < end && at < plane_end) {
      const std::uint64_t first = (at - plane.start) / plane.row_bytes;
      const std::uint64_t count = (std::min(end, plane_end) - at) / plane.row_bytes;
      std::byte* to = piece.data() + (at - offset);
      in_parallel(count, count * plane.row_bytes, [&](std::uint64_t from, std::uint64_t rows) {
        fill_rows(plane, first + from, rows, to + from * plane.row_bytes);
      });
      at += count * plane.row_bytes;
    }
    if (at < end && at < plane_end) copy_part();
  }
  if (at < end) std::memset(piece.data() + (at - offset), 0, end - at);
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 31U;
  const std::uint32_t mantissa = half & 1023U;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

std::vector<float> to_floats(const model::TensorInfo& tensor) {
  std::vector<float> values(tensor.elements());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tensor.type == model::TensorType::kF32) {
      std::memcpy(&values[i], tensor.data.data() + i * 4, 4);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, tensor.data.data() + i * 2, 2);
      values[i] = tensor.type == model::TensorType::kF16
                      ? half_to_float(bits)
                      : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
  }
  return values;
}

}  // namespace bulkhead::forward
