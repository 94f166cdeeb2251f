#include "worker/forward/weight_packing.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "worker/forward/matrix_columns.hpp"
#include "worker/forward/type_packing.hpp"
#include "worker/forward/unit_packing.hpp"

namespace bulkhead::forward {

using gpu::kernels::WeightLayout;

struct PackedMatrix::Plane {
  RowPacking::Pack pack;  // null: the type has no such plane
  std::uint64_t start, row_bytes;
};

namespace {

// Calls work(first, count) for parts of [0, total), on several threads if there is enough work.
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

gpu::kernels::WeightType packed_type(model::TensorType type, RowsAre rows) {
  if (rows == RowsAre::kRows || model::traits(type)->is_float()) return weight_type(type);
  return gpu::kernels::WeightType::kF16;
}

PackedMatrix::PackedMatrix(std::vector<const model::TensorInfo*> tensors,
                           std::vector<RowOrder> orders, Packing packing, std::uint32_t slices,
                           RowsAre rows_are)
    : tensors_(std::move(tensors)),
      orders_(std::move(orders)),
      packing_(packing),
      rows_are_(rows_are),
      slices_(slices) {
  orders_.resize(tensors_.size());
  type_ = packed_type(tensors_.front()->type, rows_are_);
  const bool columns = rows_are_ == RowsAre::kColumns;
  const auto width = [columns](const model::TensorInfo& of) {
    return columns ? of.rows() : of.ne[0];
  };
  width_ = static_cast<std::uint32_t>(width(*tensors_.front()));
  for (std::size_t i = 0; i < tensors_.size() / slices_; ++i)
    slice_rows_ += tensors_[i]->elements() / width_;
  stored_rows_ = slice_rows_;
  const bool planes = packing == Packing::kPlanes;
  if (slices_ > 1 && !planes) {
    constexpr std::uint64_t kBlock = gpu::kernels::kUnitBlockRows;
    stored_rows_ = (slice_rows_ + kBlock - 1) / kBlock * kBlock;
  }
  const std::uint64_t rows = stored_rows_ * slices_;
  layout_ = planes ? gpu::kernels::weight_layout(type_, rows, width_)
                   : gpu::kernels::unit_layout(type_, rows, width_);
}

const std::byte* PackedMatrix::row_data(std::uint64_t row, MatrixColumns& columns) const {
  const std::uint64_t slice = row / stored_rows_;
  row %= stored_rows_;
  if (slice >= slices_ || row >= slice_rows_) return nullptr;
  if (rows_are_ == RowsAre::kColumns) return columns.of(*tensors_[slice], row);
  const std::size_t in_slice = tensors_.size() / slices_, first = slice * in_slice;
  if (packing_ == Packing::kUnitsAlternating) {
    const model::TensorInfo* const tensor = tensors_[first + row % 2];
    return tensor->data.data() + row / 2 * tensor->row_bytes();
  }
  for (std::size_t i = first; i < first + in_slice; ++i) {
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
  MatrixColumns columns;
  for (std::uint64_t row = first; row < first + count; ++row, to += plane.row_bytes) {
    plane.pack(reinterpret_cast<const std::uint8_t*>(row_data(row, columns)), width_,
               reinterpret_cast<std::uint8_t*>(to));
  }
}

void PackedMatrix::fill_block(std::uint64_t block, MatrixColumns& columns, std::byte* to) const {
  std::array<const std::byte*, gpu::kernels::kUnitBlockRows> rows;
  for (std::uint64_t i = 0; i < rows.size(); ++i)
    rows[i] = row_data(block * rows.size() + i, columns);
  pack_unit_block(type_, rows, width_, to);
}

void PackedMatrix::fill_blocks(std::uint64_t offset, std::span<std::byte> piece) const {
  const std::uint64_t bytes = layout_.block_bytes;
  const std::uint64_t end = offset + piece.size();
  // Blocks across the piece's borders are packed whole, and a part of them is copied.
  std::vector<std::byte> cut;
  const auto copy_part = [&](std::uint64_t from, std::uint64_t to) {
    MatrixColumns columns;
    cut.resize(bytes);
    fill_block(from / bytes, columns, cut.data());
    std::memcpy(piece.data() + (from - offset), cut.data() + from % bytes, to - from);
  };
  const std::uint64_t first = (offset + bytes - 1) / bytes, last = end / bytes;
  if (first > last) return copy_part(offset, end);
  if (first * bytes > offset) copy_part(offset, first * bytes);
  in_parallel(last - first, (last - first) * bytes, [&](std::uint64_t from, std::uint64_t count) {
    MatrixColumns columns;
    for (std::uint64_t block = first + from; block < first + from + count; ++block)
      fill_block(block, columns, piece.data() + (block * bytes - offset));
  });
  if (last * bytes < end) copy_part(last * bytes, end);
}

void PackedMatrix::fill(std::uint64_t offset, std::span<std::byte> piece) const {
  if (piece.empty()) return;
  if (packing_ != Packing::kPlanes) return fill_blocks(offset, piece);
  const RowPacking& packing = row_packing(type_);
  const Plane planes[] = {{packing.quants, layout_.quants, layout_.quants_row},
                          {packing.high, layout_.high, layout_.high_row},
                          {packing.scales, layout_.scales, layout_.scales_row},
                          {packing.supers, layout_.supers, layout_.supers_row}};
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
    // A row across the piece's border is packed whole, and a part of it is copied.
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

std::vector<float> to_floats(const model::TensorInfo& tensor) {
  std::vector<float> values(tensor.elements());
  if (const ToFloats convert = to_floats_of(tensor.type); convert != nullptr) {
    convert(reinterpret_cast<const std::uint8_t*>(tensor.data.data()), values.size(),
            values.data());
  }
  return values;
}

}  // namespace bulkhead::forward
