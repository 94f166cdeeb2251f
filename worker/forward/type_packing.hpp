// How the blocks of one tensor type are packed: its file in gpu/kernels/types/ says what integers and
// scales they have, and templates over it make the planes (plane_packing.cpp) and the matrix units'
// blocks (unit_packing.cpp) that gpu/kernels/weight_layout.hpp describes. Pure host code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/kernels/weight_layout.hpp"

namespace bulkhead::forward {

using UnitRows = std::span<const std::byte* const, gpu::kernels::kUnitBlockRows>;

// One row of a matrix to its row of a plane. Reads `width` weights at `row`; writes what
// weight_layout() says the plane has for a row.
struct RowPacking {
  using Pack = void (*)(const std::uint8_t* row, std::uint32_t width, std::uint8_t* to);
  Pack quants = nullptr, high = nullptr, scales = nullptr, supers = nullptr;
};
const RowPacking& row_packing(gpu::kernels::TensorType type);

// Floats of a row of a float type.
using ToFloats = void (*)(const std::uint8_t* row, std::uint64_t count, float* to);
// Null: not a float type.
ToFloats to_floats_of(gpu::kernels::TensorType type);

}  // namespace bulkhead::forward
