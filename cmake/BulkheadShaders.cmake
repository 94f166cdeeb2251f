# Compute shaders compiled at build time and embedded in the library that uses them:
#
#   bulkhead_shader(TARGET SYMBOL FILE.comp [MATRICES] [DEFINES A=1 B=2 ...] [DEPENDS files ...])
#       one SPIR-V module for each (file, defines): include "gpu/kernels/SYMBOL.hpp" and use
#       bulkhead::gpu::spirv::SYMBOL, a std::span<const std::uint32_t>. MATRICES: it has cooperative matrices
#       (khr_matrices.cpp)
#   bulkhead_shaders(TARGET [MATRICES] SHADERS a.comp b.comp ... [DEFINES ...])
#       one module for each file, named as the file is
#   bulkhead_shader_modules(TARGET)
#       after these: the list of all, "gpu/kernels/shader_modules.hpp"
#
# The SPIR-V is rebuilt when a file that it includes changes (glslc tells them); DEPENDS is for what glslc can't see,
# such as generated includes. Includes are looked up beside the file, in its folder and among
# what the build has made (build/*/generated/gpu/kernels).

find_program(BULKHEAD_GLSLC glslc)
if(NOT BULKHEAD_GLSLC)
  message(FATAL_ERROR "glslc was not found; it compiles the compute shaders (Debian package: glslc)")
endif()

function(bulkhead_shader target symbol file)
  cmake_parse_arguments(arg "MATRICES" "" "DEFINES;DEPENDS" ${ARGN})
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
  cmake_path(GET file PARENT_PATH folder)
  set(generated "${CMAKE_BINARY_DIR}/generated/gpu/kernels")
  set(words "${generated}/${symbol}.inc")
  list(TRANSFORM arg_DEFINES PREPEND "-D" OUTPUT_VARIABLE defines)
  set(translation)
  if(arg_MATRICES)
    if(NOT TARGET khr-matrices)
      add_executable(khr-matrices "${CMAKE_SOURCE_DIR}/cmake/khr_matrices.cpp")
      target_link_libraries(khr-matrices PRIVATE bulkhead_options)
      set_target_properties(khr-matrices PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/cmake")
    endif()
    set(translation COMMAND khr-matrices "${words}" "${words}")
    list(APPEND arg_DEPENDS khr-matrices)
  endif()

  add_custom_command(
    OUTPUT "${words}"
    COMMAND "${PROJECT_SOURCE_DIR}/cmake/compile_shader" "${PROJECT_SOURCE_DIR}/build/spirv" "${words}"
            "${BULKHEAD_GLSLC}" --target-env=vulkan1.3 -O -Werror ${defines} -I "${folder}" -I "${generated}" "${file}"
    ${translation}
    MAIN_DEPENDENCY "${file}"
    DEPENDS ${arg_DEPENDS} "${PROJECT_SOURCE_DIR}/cmake/compile_shader"
    DEPFILE "${words}.d"
    COMMENT "Compiling shader ${symbol}"
    VERBATIM)

  file(CONFIGURE OUTPUT "${generated}/${symbol}.hpp" @ONLY CONTENT
"// Made by cmake/BulkheadShaders.cmake.
#pragma once

#include <cstdint>
#include <span>

namespace bulkhead::gpu::spirv {
extern const std::span<const std::uint32_t> @symbol@;
}
")
  file(CONFIGURE OUTPUT "${generated}/${symbol}.cpp" @ONLY CONTENT
"// Made by cmake/BulkheadShaders.cmake.
#include \"gpu/kernels/@symbol@.hpp\"

namespace bulkhead::gpu::spirv {
namespace {
constexpr std::uint32_t kWords[] = {
#include \"@symbol@.inc\"
};
}  // namespace
// Constant-initialised: usable from any static initialiser.
constinit const std::span<const std::uint32_t> @symbol@{kWords};
}  // namespace bulkhead::gpu::spirv
")
  set_source_files_properties("${generated}/${symbol}.cpp" PROPERTIES
    OBJECT_DEPENDS "${words}" SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  target_sources(${target} PRIVATE "${generated}/${symbol}.cpp")
  set_property(TARGET ${target} APPEND PROPERTY BULKHEAD_SHADER_MODULES ${symbol})
endfunction()

function(bulkhead_shader_modules target)
  get_target_property(symbols ${target} BULKHEAD_SHADER_MODULES)
  list(SORT symbols)
  set(includes "")
  set(rows "")
  foreach(symbol IN LISTS symbols)
    string(APPEND includes "#include \"gpu/kernels/${symbol}.hpp\"\n")
    string(APPEND rows "      {\"${symbol}\", ${symbol}},\n")
  endforeach()
  set(generated "${CMAKE_BINARY_DIR}/generated/gpu/kernels")
  file(CONFIGURE OUTPUT "${generated}/shader_modules.hpp" @ONLY CONTENT
"// Made by cmake/BulkheadShaders.cmake.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace bulkhead::gpu::spirv {
struct Module {
  std::string_view name;
  std::span<const std::uint32_t> words;
};
// All that are built, by name.
std::span<const Module> modules();
}  // namespace bulkhead::gpu::spirv
")
  file(CONFIGURE OUTPUT "${generated}/shader_modules.cpp" @ONLY CONTENT
"// Made by cmake/BulkheadShaders.cmake.
#include \"gpu/kernels/shader_modules.hpp\"

@includes@
namespace bulkhead::gpu::spirv {
std::span<const Module> modules() {
  static const Module kModules[] = {
@rows@  };
  return kModules;
}
}  // namespace bulkhead::gpu::spirv
")
  target_sources(${target} PRIVATE "${generated}/shader_modules.cpp")
endfunction()

function(bulkhead_shaders target)
  cmake_parse_arguments(arg "MATRICES" "" "SHADERS;DEFINES;DEPENDS" ${ARGN})
  set(matrices)
  if(arg_MATRICES)
    set(matrices MATRICES)
  endif()
  foreach(file IN LISTS arg_SHADERS)
    cmake_path(GET file STEM symbol)
    bulkhead_shader(${target} ${symbol} "${file}" ${matrices} DEFINES ${arg_DEFINES} DEPENDS ${arg_DEPENDS})
  endforeach()
endfunction()
