// Packs rows of a GGUF matrix in the order of matrix units' fragments, as gpu/kernels/units.glsl reads them (layout:
// gpu/kernels/weight_layout.hpp, unit_layout). Pure host code; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/forward/type_packing.hpp"

namespace bulkhead::forward {

// Packs one block of gpu::kernels::kUnitBlockRows rows. Each row has `width` weights as in the file; null stands for
// a row of zeros. The function fills all unit_layout(type, ..).block_bytes bytes of `to`. Floats become halves: F16
// unchanged, BF16 and F32 rounded to the nearest half; values beyond a half's range become the largest half.
void pack_unit_block(gpu::kernels::TensorType type, UnitRows rows, std::uint32_t width,
                     std::byte* to);

}  // namespace bulkhead::forward
