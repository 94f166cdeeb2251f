// Packs rows of a GGUF matrix in the order of matrix units' fragments: what gpu/kernels/units.glsl
// reads (layout: gpu/kernels/weight_layout.hpp, unit_layout). Pure host code; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/forward/type_packing.hpp"

namespace bulkhead::forward {

// One block, of gpu::kernels::kUnitBlockRows rows of `width` weights as the file has them; null: a
// row of zeros. `to` has room for unit_layout(type, ..).block_bytes, all of which are written.
// Floats become halves: F16 as they are, BF16 and F32 rounded to the nearest, those beyond a half's
// range to its largest.
void pack_unit_block(gpu::kernels::TensorType type, UnitRows rows, std::uint32_t width,
                     std::byte* to);

}  // namespace bulkhead::forward
