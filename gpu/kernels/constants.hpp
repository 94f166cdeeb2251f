// Specialisation constants from C++: one struct for each CONSTANTS block of a kernel's .comp or of a file in
// gpu/kernels/constants/. GLSL compiles the same lines (constants/words.glsl), so code never refers to a constant by
// its number.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpu/device.hpp"

namespace bulkhead::gpu::kernels {

#define CONSTANTS(Name, first) \
  struct Name {                \
    static constexpr std::uint32_t kFirst = first;
#define CONSTANT(id, glsl_name, name, value) std::uint32_t name = value;
#define INVOCATIONS(id, glsl_name, name, value) std::uint32_t name = value;
#define CONSTANTS_END \
  }                   \
  ;
#include "gpu/kernels/constant_list.hpp"
#undef CONSTANTS
#undef CONSTANT
#undef INVOCATIONS
#undef CONSTANTS_END

// A constant's index is its id.
#define CONSTANTS(Name, first) \
  namespace ids_of_##Name {    \
    using Declared = Name;
#define CONSTANT(id, glsl_name, name, value) \
  static_assert(offsetof(Declared, name) == (id - Declared::kFirst) * 4);
#define INVOCATIONS(id, glsl_name, name, value) CONSTANT(id, glsl_name, name, value)
#define CONSTANTS_END }
#include "gpu/kernels/constant_list.hpp"
#undef CONSTANTS
#undef CONSTANT
#undef INVOCATIONS
#undef CONSTANTS_END

// The constants of a kernel that one declaration contains, for reading or changing them.
template <typename Declared>
Declared read_constants(const KernelSpec& spec) {
  std::array<std::uint32_t, sizeof(Declared) / 4> words;
  std::copy_n(spec.constants.begin() + Declared::kFirst, words.size(), words.begin());
  return std::bit_cast<Declared>(words);
}
template <typename Declared>
void write_constants(KernelSpec& spec, const Declared& declared) {
  const auto words = std::bit_cast<std::array<std::uint32_t, sizeof(Declared) / 4>>(declared);
  spec.constants.resize((std::max)(spec.constants.size(), Declared::kFirst + words.size()));
  std::copy(words.begin(), words.end(), spec.constants.begin() + Declared::kFirst);
}

// Returns the constants of a kernel that declares all of these, in the order of their ids.
template <typename... Declared>
std::vector<std::uint32_t> constants_of(const Declared&... declared) {
  KernelSpec spec;
  (write_constants(spec, declared), ...);
  return std::move(spec.constants);
}

}  // namespace bulkhead::gpu::kernels
