# Compiler settings, third-party packages and the two helpers that every folder uses:
#   bulkhead_library(NAME [BUSY] SOURCES ... PUBLIC ... PRIVATE ...)   a static library. BUSY: tests compute so much
#     in it that optimising it pays under AddressSanitizer, too
#   bulkhead_program(NAME SOURCES ... LINK ...)                 a program in bin/
#   bulkhead_apart(SOURCE ...)                                  see BULKHEAD_UNITY
#   bulkhead_test(NAME SOURCES ... LINK ... [LABELS ...] [TIMEOUT s] [COST s] [SINGLE|TOGETHER])   a
#     GoogleTest program, discovered by CTest; a test of it is killed after 4 times TIMEOUT

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

if(BULKHEAD_CCACHE)
  find_program(BULKHEAD_CCACHE_PROGRAM ccache)
  if(BULKHEAD_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${BULKHEAD_CCACHE_PROGRAM}")
    if(BULKHEAD_PRECOMPILED_HEADERS)  # as ccache's manual asks for precompiled headers
      list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros
           CCACHE_IGNOREOPTIONS=--param=ggc-min-heapsize=*)
    endif()
    set(CMAKE_C_COMPILER_LAUNCHER "${BULKHEAD_CCACHE_PROGRAM}")
  endif()
endif()

# The headers that a source includes take half of its compile time. Sources that have their own flags are compiled
# alone.
if(BULKHEAD_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 30)
endif()

# By default GCC collects its garbage each time it has 128 MiB. That takes a tenth of the compile time and saves a
# quarter of the memory.
if(BULKHEAD_PRECOMPILED_HEADERS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=600000>)
endif()

# In builds that compile sources together, GCC's whole -Wshadow would warn of names that two sources of one library
# have. So all GCC builds have the part that is the same in both kinds of build: a variable that hides another variable.
set(shadow -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(shadow -Wshadow=local)
elseif(BULKHEAD_UNITY)  # Clang has no such part
  set(shadow "")
endif()

# Everything of ours compiles with these; third-party headers are system headers.
add_library(bulkhead_options INTERFACE)
target_compile_options(bulkhead_options INTERFACE
  -Wall -Wextra ${shadow} -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough -Werror
  -fno-omit-frame-pointer)
target_include_directories(bulkhead_options INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}/generated")
target_compile_definitions(bulkhead_options INTERFACE
  $<$<BOOL:${BULKHEAD_FAULT_INJECTION}>:BULKHEAD_FAULT_INJECTION=1>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns of overlapping copies inside std::string that can't happen (GCC PR 105651).
  target_compile_options(bulkhead_options INTERFACE -Wno-restrict)
  # GCC would warn of names that two sources of one library have. Builds that compile them apart have this warning.
  if(BULKHEAD_UNITY)
    target_compile_options(bulkhead_options INTERFACE -Wno-subobject-linkage)
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Clang warns of structures that begin with what Vulkan asks for and are zero otherwise, of lambda expressions that
  # use `this` for some types only, and of a deprecated function that libstdc++ itself calls in std::stable_sort.
  target_compile_options(bulkhead_options INTERFACE  # SHELL: after -Wextra, which has the first of them
    "SHELL:-Wno-missing-field-initializers -Wno-unused-lambda-capture -Wno-deprecated-declarations")
endif()
if(BULKHEAD_SANITIZE)
  target_compile_options(bulkhead_options INTERFACE
    -fsanitize=${BULKHEAD_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(bulkhead_options INTERFACE -fsanitize=${BULKHEAD_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    if(NOT BULKHEAD_SANITIZE MATCHES "fuzzer")
      # Tests that replace `operator new` cannot link Clang's static runtime, which has it, too.
      execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libclang_rt.asan-${CMAKE_SYSTEM_PROCESSOR}.so
        OUTPUT_VARIABLE runtime OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
      cmake_path(GET runtime PARENT_PATH runtimes)
      target_link_options(bulkhead_options INTERFACE -shared-libsan "LINKER:-rpath,${runtimes}")
    endif()
    include(CheckLinkerFlag)
    check_linker_flag(CXX -fuse-ld=lld BULKHEAD_LLD)
    target_link_options(bulkhead_options INTERFACE $<$<BOOL:${BULKHEAD_LLD}>:-fuse-ld=lld>)
    # GCC defines these, and so do later releases of Clang.
    string(REGEX MATCHALL "address|thread" sanitizers "${BULKHEAD_SANITIZE}")
    list(TRANSFORM sanitizers TOUPPER)
    list(TRANSFORM sanitizers REPLACE "(.+)" "__SANITIZE_\\1__=1")
    target_compile_definitions(bulkhead_options INTERFACE ${sanitizers})
  endif()
  if(BULKHEAD_SANITIZE MATCHES "undefined")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # UBSan's instrumentation makes GCC 12 warn of uninitialised uses and null arguments that do not exist.
      target_compile_options(bulkhead_options INTERFACE -Wno-maybe-uninitialized -Wno-nonnull)
    endif()
    # AddressSanitizer reports these faults, too, and the checks take a quarter of the compile time.
    target_compile_options(bulkhead_options INTERFACE
      -fno-sanitize=null,vptr,object-size,nonnull-attribute,returns-nonnull-attribute)
  endif()
  if(BULKHEAD_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Asio uses fences, which ThreadSanitizer does not understand. Bulkhead uses none.
    target_compile_options(bulkhead_options INTERFACE -Wno-tsan)
    # The instrumentation makes GCC 12 warn of uninitialised members of a variant that holds something else.
    target_compile_options(bulkhead_options INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()

find_package(Threads REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(Vulkan REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
find_library(BULKHEAD_LIBEDIT edit REQUIRED)  # pkg-config adds definitions that a precompiled header lacks
pkg_check_modules(seccomp REQUIRED IMPORTED_TARGET libseccomp)
if(BULKHEAD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# The programs of a portable build find third-party libraries in their own folder.
if(BULKHEAD_PORTABLE)
  set(CMAKE_INSTALL_RPATH "$ORIGIN")
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
  find_file(BULKHEAD_VULKAN_LOADER libvulkan.so.1 PATH_SUFFIXES lib/${CMAKE_LIBRARY_ARCHITECTURE} lib
    HINTS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} REQUIRED)
endif()

function(bulkhead_library name)
  cmake_parse_arguments(arg "BUSY" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC bulkhead_options ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  set_target_properties(${name} PROPERTIES BULKHEAD_BUSY ${arg_BUSY})
  set(optimise "")
  if(arg_BUSY AND BULKHEAD_SANITIZE MATCHES "address")
    set(optimise -Og)
    target_compile_options(${name} PRIVATE ${optimise})
  endif()
  bulkhead_precompile_product(${name} -fPIC ${optimise})
endfunction()

# Compiles sources of this folder alone even if BULKHEAD_UNITY is on, because other sources of their library or program
# define the same names.
function(bulkhead_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# Makes a program of an AddressSanitizer build keep the libraries that it has loaded. tests/support/keep_libraries.cpp
# gives the reason.
function(bulkhead_keep_libraries name)
  if(BULKHEAD_SANITIZE MATCHES "address")
    set(keep "${CMAKE_SOURCE_DIR}/tests/support/keep_libraries.cpp")
    set_source_files_properties("${keep}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
    target_sources(${name} PRIVATE "${keep}")
  endif()
endfunction()

function(bulkhead_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  bulkhead_keep_libraries(${name})
  target_link_libraries(${name} PRIVATE bulkhead_options ${arg_LINK})
  bulkhead_precompile_product(${name} -fPIE)
  if(BULKHEAD_PORTABLE)
    add_custom_command(TARGET ${name} POST_BUILD
      COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${name}> -DDESTINATION=$<TARGET_FILE_DIR:${name}>
              -DEXTRA=${BULKHEAD_VULKAN_LOADER} -P ${CMAKE_SOURCE_DIR}/cmake/CopyLibraries.cmake
      VERBATIM)
  endif()
endfunction()

# Links libraries that are BUSY before the program's own sources. Both have functions of headers, such as those of
# std::vector, and the linker takes the first of two. Sanitizer builds do not optimise the tests, and with the tests'
# functions the libraries take up to twice as long.
function(bulkhead_link_busy_first name)
  if(NOT BULKHEAD_SANITIZE)
    return()
  endif()
  foreach(library IN LISTS ARGN)
    set(busy FALSE)
    if(TARGET ${library})
      get_target_property(busy ${library} BULKHEAD_BUSY)
    endif()
    if(busy)
      target_link_options(${name} PRIVATE "LINKER:--whole-archive,$<TARGET_FILE:${library}>,--no-whole-archive")
    endif()
  endforeach()
endfunction()

# Builds the program with the targets tests-LABEL.
function(bulkhead_label name)
  foreach(label IN LISTS ARGN)
    if(NOT TARGET tests-${label})
      add_custom_target(tests-${label})
    endif()
    add_dependencies(tests-${label} ${name})
  endforeach()
endfunction()

# Headers that nearly every source includes, compiled once for all that are compiled alike: half of the time that most
# sources take. Sources include what they use all the same: BULKHEAD_PRECOMPILED_HEADERS is off where a compiler cache
# serves. `suffix` names the flags beyond the build's, `link` what the headers belong to.
function(bulkhead_precompile name suffix)
  cmake_parse_arguments(arg "" "" "FLAGS;LINK;HEADERS" ${ARGN})
  if(NOT BULKHEAD_PRECOMPILED_HEADERS)
    return()
  endif()
  set(headers bulkhead_headers${suffix})
  if(NOT TARGET ${headers})
    set(nothing "${CMAKE_BINARY_DIR}/generated/${headers}.cpp")
    file(CONFIGURE OUTPUT "${nothing}" CONTENT "")
    add_library(${headers} OBJECT EXCLUDE_FROM_ALL "${nothing}")
    target_link_libraries(${headers} PRIVATE bulkhead_options ${arg_LINK})
    # As those who use them are compiled: GCC refuses headers compiled otherwise.
    set_target_properties(${headers} PROPERTIES POSITION_INDEPENDENT_CODE OFF UNITY_BUILD OFF)
    target_compile_options(${headers} PRIVATE ${arg_FLAGS})
    target_precompile_headers(${headers} PRIVATE
      <algorithm> <atomic> <chrono> <filesystem> <fstream> <functional> <map> <memory> <optional> <set> <span> <sstream>
      <string>
      <thread> <vector> ${arg_HEADERS})
  endif()
  target_precompile_headers(${name} REUSE_FROM ${headers})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # -fpch-preprocess for ccache. GCC 12 warns in precompiled headers of the system what it is silent about in others:
    # that an assignment to a std::string might copy more than there is memory.
    target_compile_options(${name} PRIVATE -fpch-preprocess -Wno-stringop-overflow -Wno-array-bounds)
  endif()
endfunction()

# For a target that links bulkhead_base; `code` is -fPIC in libraries, -fPIE in programs. Sources with flags of their
# own go without (SKIP_PRECOMPILE_HEADERS). More flags of the target may follow.
function(bulkhead_precompile_product name code)
  set(headers <spdlog/spdlog.h>)
  if(code STREQUAL "-fPIE")
    if(BULKHEAD_UNITY)  # there are not enough of them left
      return()
    endif()
    list(APPEND headers <nlohmann/json.hpp>)  # half of them are benchmarks
  endif()
  list(JOIN ARGN "" more)
  bulkhead_precompile(${name} "${code}${more}" FLAGS ${code} ${ARGN} HEADERS ${headers}
    LINK spdlog::spdlog nlohmann_json::nlohmann_json Threads::Threads)
endfunction()

# Sets `quick` and `slow` to filters for the program's quick and slow tests, by tests/slow_tests.cmake. "*" means all
# tests, and an empty filter none.
function(bulkhead_split_by_time name quick slow)
  set(quick_filter "*")
  set(slow_filter "")
  foreach(row IN LISTS BULKHEAD_SLOW_TESTS)
    string(REPLACE " " ";" words "${row}")
    list(POP_FRONT words row_name which filter)
    if(NOT name MATCHES "^(${row_name})$")
      continue()
    endif()
    if("${which}" STREQUAL "")
      set(quick_filter "")
      set(slow_filter "*")
    elseif(which STREQUAL "QUICK")
      set(quick_filter "${filter}")
      set(slow_filter "-${filter}")
    elseif(which STREQUAL "SLOW")
      set(quick_filter "-${filter}")
      set(slow_filter "${filter}")
    else()
      message(FATAL_ERROR "tests/slow_tests.cmake: ${row_name} takes QUICK or SLOW, not ${which}")
    endif()
  endforeach()
  set(${quick} "${quick_filter}" PARENT_SCOPE)
  set(${slow} "${slow_filter}" PARENT_SCOPE)
endfunction()

# Adds the label `slow` to a test that is no GoogleTest program, if tests/slow_tests.cmake has it. Call it after the
# test has its other labels.
function(bulkhead_label_slow name)
  bulkhead_split_by_time(${name} quick slow)
  if(slow STREQUAL "*")
    set_property(TEST ${name} APPEND PROPERTY LABELS slow)
  endif()
endfunction()

# One CTest test for each TEST() (default), or one for the whole program (SINGLE). TOGETHER: in an AddressSanitizer
# build four processes run the program's tests, NAME.part1 to NAME.part4, because a process there takes 60 ms of a core
# to start and to end, which is longer than most tests take. Only programs whose tests need no process of their own may
# have this; in the other builds each test has one.
#
# For each label there is a target tests-LABEL that builds the programs with it. Several labels become one,
# "unit+sanitize", which `ctest -L sanitize` matches: gtest_discover_tests loses all but the first of a list.
# tests/slow_tests.cmake names the tests that get the label `slow`, too. TIMEOUT (default 120): seconds that a test
# takes at most on a machine as slow as a laptop; CTest takes it for hung after four times that. COST: CTest starts
# tests with a higher cost first.
function(bulkhead_test name)
  cmake_parse_arguments(arg "SINGLE;TOGETHER" "TIMEOUT;COST" "SOURCES;LINK;LABELS;DEPENDS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")  # for machines that are much slower, or do much else
  list(JOIN arg_LABELS "+" label)
  add_executable(${name} ${arg_SOURCES})
  bulkhead_keep_libraries(${name})
  target_link_libraries(${name} PRIVATE bulkhead_options GTest::gmock GTest::gtest_main ${arg_LINK})
  bulkhead_link_busy_first(${name} ${arg_LINK})
  if("integration" IN_LIST arg_LABELS)
    target_link_libraries(${name} PRIVATE bulkhead_cache_seal)  # tests/support/daemon.hpp
  endif()
  target_compile_definitions(${name} PRIVATE
    BULKHEAD_SOURCE_DIR="${CMAKE_SOURCE_DIR}" BULKHEAD_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests" UNITY_BUILD_BATCH_SIZE 7)
  # Tests are the half of a build's compile time. Those of real processes, and of sanitizer builds, wait for what they
  # test.
  set(flags "")
  set(headers "")
  if(BULKHEAD_SANITIZE)
    set(flags -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    set(flags -O1 -g0)
    if("integration" IN_LIST arg_LABELS)
      set(flags -O0 -g0)
      set(headers <nlohmann/json.hpp>)
    endif()
  endif()
  target_compile_options(${name} PRIVATE ${flags})
  list(JOIN flags "" suffix)
  bulkhead_precompile(${name} "-tests${suffix}" FLAGS -fPIE ${flags} HEADERS <gmock/gmock.h> <gtest/gtest.h> ${headers}
    LINK GTest::gmock GTest::gtest nlohmann_json::nlohmann_json)
  if(arg_DEPENDS)
    add_dependencies(${name} ${arg_DEPENDS})
  endif()
  bulkhead_label(${name} ${arg_LABELS})
  set(form "")
  if(arg_SINGLE)
    set(form SINGLE)
  elseif(arg_TOGETHER AND BULKHEAD_SANITIZE MATCHES "address")
    set(form PARTS)
  endif()
  bulkhead_split_by_time(${name} quick slow)
  bulkhead_register_tests("${quick}" ${name} "${label}" "${arg_TIMEOUT}" "${arg_COST}" "${form}")
  bulkhead_register_tests("${slow}" ${name} "${label}+slow" "${arg_TIMEOUT}" "${arg_COST}" "${form}")
endfunction()

# Registers the program's tests that the filter selects; an empty filter selects none. `form`: SINGLE, PARTS (for
# TOGETHER), or empty for one CTest test each.
function(bulkhead_register_tests filter name label timeout cost form)
  if(filter STREQUAL "")
    return()
  endif()
  set(properties TIMEOUT ${timeout} LABELS "${label}")
  if(cost)
    list(APPEND properties COST ${cost})
  endif()
  if(form STREQUAL "")
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_FILTER "${filter}" PROPERTIES ${properties})
    return()
  endif()
  set(test ${name})
  set(command ${name})
  if(NOT filter STREQUAL "*")
    list(APPEND command --gtest_filter=${filter})
    if(NOT label MATCHES "slow")
      set(test ${name}_quick)
    endif()
  endif()
  if(form STREQUAL "SINGLE")
    add_test(NAME ${test} COMMAND ${command})
    set_tests_properties(${test} PROPERTIES ${properties})
    return()
  endif()
  set(parts 4)
  foreach(part RANGE 1 ${parts})
    math(EXPR index "${part} - 1")
    add_test(NAME ${test}.part${part} COMMAND ${command})
    set_tests_properties(${test}.part${part} PROPERTIES ${properties}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${parts};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()
