# Compute shaders compiled at build time and embedded in the library that uses them:
#
#   bulkhead_shader(TARGET SYMBOL FILE.comp [MATRICES] [DEFINES A=1 B=2 ...] [DEPENDS files ...])
#       one SPIR-V module for each (file, defines): include "gpu/kernels/SYMBOL.hpp" and use
#       bulkhead::gpu::spirv::SYMBOL, a std::span<const std::uint32_t>. MATRICES: it has cooperative matrices
#       (khr_matrices.cpp)
#   bulkhead_shaders(TARGET [MATRICES] SHADERS a.comp b.comp ... [DEFINES ...])
#       one module for each file, named as the file is
#   bulkhead_shader_choices(TARGET SYMBOL FILE.comp MACRO CHOICES a b ... [DEFINES ...])
#       one module SYMBOL_CHOICE for each choice, for which MACRO is its index; use
#       bulkhead::gpu::spirv::SYMBOL(index). A specialisation constant could choose, too, but a driver reads the whole
#       module before it knows the constant: lavapipe, which does so at each start, took 25 ms for a product's pipeline
#       whose module has all tensor types, and takes 4 ms for one of a module that has one
#   bulkhead_shader_modules(TARGET)
#       after these: the list of all, "gpu/kernels/shader_modules.hpp"
#
# The SPIR-V is rebuilt when a file that it includes changes (glslc lists these files). DEPENDS names what glslc can't
# see, such as generated includes. The compiler looks for includes in the file's own folder and in the folder of what
# the build makes (build/*/generated/gpu/kernels).

find_program(BULKHEAD_GLSLC glslc)
if(NOT BULKHEAD_GLSLC)
  message(FATAL_ERROR "glslc was not found; it compiles the compute shaders (Debian package: glslc)")
endif()

# In the cache, because other folders call the functions, too.
set(BULKHEAD_SHADER_FOLDER "${CMAKE_BINARY_DIR}/generated/gpu/kernels" CACHE INTERNAL "C++ sources of shaders")

# Compiles the file to SYMBOL.inc, the words of the module.
function(bulkhead_compile_shader symbol file)
  cmake_parse_arguments(arg "MATRICES" "" "DEFINES;DEPENDS" ${ARGN})
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
  cmake_path(GET file PARENT_PATH folder)
  set(words "${BULKHEAD_SHADER_FOLDER}/${symbol}.inc")
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
            "${BULKHEAD_GLSLC}" --target-env=vulkan1.3 -O -Werror ${defines}
            -I "${folder}" -I "${BULKHEAD_SHADER_FOLDER}" "${file}"
    ${translation}
    MAIN_DEPENDENCY "${file}"
    DEPENDS ${arg_DEPENDS} "${PROJECT_SOURCE_DIR}/cmake/compile_shader"
    DEPFILE "${words}.d"
    COMMENT "Compiling shader ${symbol}"
    VERBATIM)
endfunction()

# Adds SYMBOL.cpp, which the build has made, to the target. WORDS are the files that it includes; MODULES are the
# modules that SYMBOL.hpp declares.
function(bulkhead_add_shader_source target symbol)
  cmake_parse_arguments(arg "" "" "WORDS;MODULES" ${ARGN})
  set(source "${BULKHEAD_SHADER_FOLDER}/${symbol}.cpp")
  set_source_files_properties("${source}" PROPERTIES
    OBJECT_DEPENDS "${arg_WORDS}" SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  target_sources(${target} PRIVATE "${source}")
  set_property(TARGET ${target} APPEND PROPERTY BULKHEAD_SHADER_MODULES ${arg_MODULES})
  set_property(TARGET ${target} APPEND PROPERTY BULKHEAD_SHADER_HEADERS ${symbol})
endfunction()

function(bulkhead_shader target symbol file)
  bulkhead_compile_shader(${symbol} "${file}" ${ARGN})
  file(CONFIGURE OUTPUT "${BULKHEAD_SHADER_FOLDER}/${symbol}.hpp" @ONLY CONTENT
"// Made by cmake/BulkheadShaders.cmake.
#pragma once

#include <cstdint>
#include <span>

namespace bulkhead::gpu::spirv {
extern const std::span<const std::uint32_t> @symbol@;
}
")
  file(CONFIGURE OUTPUT "${BULKHEAD_SHADER_FOLDER}/${symbol}.cpp" @ONLY CONTENT
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
  bulkhead_add_shader_source(${target} ${symbol} WORDS "${BULKHEAD_SHADER_FOLDER}/${symbol}.inc" MODULES ${symbol})
endfunction()

function(bulkhead_shader_choices target symbol file macro)
  cmake_parse_arguments(arg "" "" "CHOICES;DEFINES" ${ARGN})
  set(index 0)
  set(modules "")
  set(words "")
  set(arrays "")
  foreach(choice IN LISTS arg_CHOICES)
    bulkhead_compile_shader(${symbol}_${choice} "${file}" DEFINES ${macro}=${index}u ${arg_DEFINES})
    list(APPEND modules ${symbol}_${choice})
    list(APPEND words "${BULKHEAD_SHADER_FOLDER}/${symbol}_${choice}.inc")
    string(APPEND arrays "constexpr std::uint32_t k_${choice}[] = {\n#include \"${symbol}_${choice}.inc\"\n};\n")
    math(EXPR index "${index} + 1")
  endforeach()
  list(TRANSFORM arg_CHOICES REPLACE "(.+)" "k_\\1" OUTPUT_VARIABLE spans)
  list(JOIN spans ", " spans)
  set(declarations "")
  set(definitions "")
  foreach(module choice IN ZIP_LISTS modules arg_CHOICES)
    string(APPEND declarations "extern const std::span<const std::uint32_t> ${module};\n")
    string(APPEND definitions "constinit const std::span<const std::uint32_t> ${module}{k_${choice}};\n")
  endforeach()
  file(CONFIGURE OUTPUT "${BULKHEAD_SHADER_FOLDER}/${symbol}.hpp" @ONLY CONTENT
"// Made by cmake/BulkheadShaders.cmake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bulkhead::gpu::spirv {
@declarations@// `choice` must be less than @index@.
std::span<const std::uint32_t> @symbol@(std::size_t choice);
}  // namespace bulkhead::gpu::spirv
")
  file(CONFIGURE OUTPUT "${BULKHEAD_SHADER_FOLDER}/${symbol}.cpp" @ONLY CONTENT
"// Made by cmake/BulkheadShaders.cmake.
#include \"gpu/kernels/@symbol@.hpp\"

namespace bulkhead::gpu::spirv {
namespace {
@arrays@}  // namespace
@definitions@
std::span<const std::uint32_t> @symbol@(std::size_t choice) {
  static constexpr std::span<const std::uint32_t> kModules[] = {@spans@};
  return kModules[choice];
}
}  // namespace bulkhead::gpu::spirv
")
  bulkhead_add_shader_source(${target} ${symbol} WORDS ${words} MODULES ${modules})
endfunction()

function(bulkhead_shader_modules target)
  get_target_property(headers ${target} BULKHEAD_SHADER_HEADERS)
  list(SORT headers)
  list(TRANSFORM headers REPLACE "(.+)" "#include \"gpu/kernels/\\1.hpp\"\n" OUTPUT_VARIABLE includes)
  list(JOIN includes "" includes)
  get_target_property(symbols ${target} BULKHEAD_SHADER_MODULES)
  list(SORT symbols)
  set(rows "")
  foreach(symbol IN LISTS symbols)
    string(APPEND rows "      {\"${symbol}\", ${symbol}},\n")
  endforeach()
  file(CONFIGURE OUTPUT "${BULKHEAD_SHADER_FOLDER}/shader_modules.hpp" @ONLY CONTENT
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
  file(CONFIGURE OUTPUT "${BULKHEAD_SHADER_FOLDER}/shader_modules.cpp" @ONLY CONTENT
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
  target_sources(${target} PRIVATE "${BULKHEAD_SHADER_FOLDER}/shader_modules.cpp")
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
