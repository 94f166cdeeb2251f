// Structs that GLSL and C++ share, above all push constants. One place declares the fields of a struct. A
// kernel declares its own push constants in its .comp, between FIELDS and FIELDS_END; the build copies them
// into a struct of gpu/kernels/push_constants.hpp. What several kernels share stands in fields/NAME.glsl; GLSL
// includes that file in a block, and C++ includes it in a struct. So a field can't differ in its place, type
// or name.
//
// A field is a uint64_t (a device address), a uint or a float, which lies at the next multiple of its size in
// both languages. Value-initialise the structs (`MatvecPush push{};`): they have no default initialisers.
#pragma once

#include <cstdint>

namespace bulkhead::gpu::kernels {

using uint = std::uint32_t;  // GLSL's name

static_assert(alignof(std::uint64_t) == 8 && alignof(uint) == 4 && alignof(float) == 4);

}  // namespace bulkhead::gpu::kernels
