// What modes, forms and formats of kernels may be: an enum class for each VALUES of a kernel or of a file in
// gpu/kernels/values/, and the numbers that stand there. GLSL compiles the same lines (constants/words.glsl), so the
// two can't differ.
#pragma once

#include <cstdint>

namespace bulkhead::gpu::kernels {

// clang-format off
#define VALUES(Name) enum class Name : std::uint32_t {
#define VALUE(glsl_name, name, number) name = number,
#define VALUES_END };
#define NUMBER(name, number) inline constexpr std::uint32_t name = number;
#include "gpu/kernels/value_list.hpp"
#undef VALUES
#undef VALUE
#undef VALUES_END
#undef NUMBER
// clang-format on

}  // namespace bulkhead::gpu::kernels
