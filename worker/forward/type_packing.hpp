// How the blocks of one tensor type are packed. The type's file in gpu/kernels/types/ says which integers and scales
// a block has; templates over it make the planes (plane_packing.cpp) and the matrix units' blocks (unit_packing.cpp)
// that gpu/kernels/weight_layout.hpp describes. Pure host code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/kernels/weight_layout.hpp"

namespace bulkhead::forward {

using UnitRows = std::span<const std::byte* const, gpu::kernels::kUnitBlockRows>;

// Converts one row of a matrix to its row of a plane: reads `width` weights at `row`, and writes what weight_layout()
// says the plane has for a row.
struct RowPacking {
  using Pack = void (*)(const std::uint8_t* row, std::uint32_t width, std::uint8_t* to);
  Pack quants = nullptr, high = nullptr, scales = nullptr, supers = nullptr;
};
const RowPacking& row_packing(gpu::kernels::TensorType type);

// Converts a row of a float type to floats.
using ToFloats = void (*)(const std::uint8_t* row, std::uint64_t count, float* to);
// Returns null if the type is not a float type.
ToFloats to_floats_of(gpu::kernels::TensorType type);

}  // namespace bulkhead::forward
