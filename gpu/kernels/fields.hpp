// Structs that GLSL and C++ share, above all push constants. Each struct's fields are declared in one place. A kernel
// declares its own push constants in its .comp, between FIELDS and FIELDS_END; the build copies them into a struct of
// gpu/kernels/push_constants.hpp. Fields that several kernels share are in fields/NAME.glsl; GLSL includes that file
// in a block, and C++ includes it in a struct. So both languages have the same offset, type and name for every field.
//
// A field is a uint64_t (a device address), a uint or a float; in both languages it lies at the next multiple of its
// size. Value-initialise the structs (`MatvecPush push{};`), because they have no default initialisers.
#pragma once

#include <cstdint>

namespace bulkhead::gpu::kernels {

using uint = std::uint32_t;  // GLSL's name

static_assert(alignof(std::uint64_t) == 8 && alignof(uint) == 4 && alignof(float) == 4);

}  // namespace bulkhead::gpu::kernels
