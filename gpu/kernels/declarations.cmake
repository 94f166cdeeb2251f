# Copies a kernel's declarations for C++ from the kernel's source (constants/words.glsl explains the words).

# Sets OUT to the parts of SOURCE from each WORD(...) to its WORD_END, with both and without indentation. Both words
# must begin a line. Errors name FILE.
function(declared_by file source word out)
  string(REGEX REPLACE "\n[ ]+" "\n" rest "${source}")
  set(parts "")
  string(FIND "${rest}" "\n${word}(" at)
  while(at GREATER -1)
    string(SUBSTRING "${rest}" ${at} -1 rest)
    string(FIND "${rest}" "\n${word}_END\n" end)
    if(end EQUAL -1)
      message(FATAL_ERROR "${file}: ${word} has no ${word}_END on a line of its own")
    endif()
    string(SUBSTRING "${rest}" 1 ${end} part)
    string(APPEND parts "${part}${word}_END\n")
    string(SUBSTRING "${rest}" ${end} -1 rest)
    string(FIND "${rest}" "\n${word}(" at)
  endwhile()
  set(${out} "${parts}" PARENT_SCOPE)
endfunction()

# Sets OUT to the C++ struct for FIELDS, which is the text that declared_by() has found for that word; an empty text
# gives an empty OUT. The struct's size must be a multiple of MULTIPLE bytes.
function(push_struct fields multiple out)
  set(struct "")
  if(fields MATCHES "^FIELDS\\(([A-Za-z0-9]+)\\)\n")
    set(name "${CMAKE_MATCH_1}")
    string(REPLACE "FIELDS(${name})\n" "" fields "${fields}")
    string(REPLACE "FIELDS_END\n" "" fields "${fields}")
    if(fields MATCHES "FIELDS")
      message(FATAL_ERROR "${name}: a kernel has one FIELDS")
    endif()
    set(struct "struct ${name} {\n${fields}};\nstatic_assert(sizeof(${name}) % ${multiple} == 0);\n\n")
  elseif(NOT fields STREQUAL "")
    message(FATAL_ERROR "FIELDS names no struct: ${fields}")
  endif()
  set(${out} "${struct}" PARENT_SCOPE)
endfunction()

# Sets OUT to the row of a kernel that declares alone what it takes: one FIELDS, and constants from 0 on that it shares
# with no other kernel. Others have an empty OUT; C++ puts their constants together.
function(kernel_row file source fields constants out)
  set(row "")
  cmake_path(GET file STEM symbol)
  string(REPLACE "_" " " name "${symbol}")
  string(REGEX MATCHALL "CONSTANTS\\(" declared "${constants}")
  list(LENGTH declared declared)
  string(FIND "${source}" "#include \"constants/" shared)
  if(declared EQUAL 1 AND shared EQUAL -1 AND fields MATCHES "^FIELDS\\(([A-Za-z0-9]+)Push\\)\n")
    set(kernel "${CMAKE_MATCH_1}")
    if(constants MATCHES "^CONSTANTS\\(${kernel}Constants, 0\\)\n")
      set(row "struct ${kernel}Kernel {
  using Push = ${kernel}Push;
  using Constants = ${kernel}Constants;
  static constexpr const char* kName = \"${name}\";
  static std::span<const std::uint32_t> code() { return spirv::${symbol}; }
};

")
    endif()
  endif()
  set(${out} "${row}" PARENT_SCOPE)
endfunction()
