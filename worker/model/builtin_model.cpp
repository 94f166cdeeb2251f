#include "worker/model/builtin_model.hpp"

// The assembler includes the file as bytes (`.incbin`), because for a C array of 8 MB the compiler needs half a
// minute and a gigabyte. CMake defines the path, and makes this file depend on it.
#ifdef BULKHEAD_BUILTIN_MODEL

asm(".pushsection .rodata, \"a\"\n"
    ".balign 64\n"
    ".global bulkhead_builtin_model_begin\n"
    ".hidden bulkhead_builtin_model_begin\n"
    "bulkhead_builtin_model_begin:\n"
    ".incbin \"" BULKHEAD_BUILTIN_MODEL
    "\"\n"
    ".global bulkhead_builtin_model_end\n"
    ".hidden bulkhead_builtin_model_end\n"
    "bulkhead_builtin_model_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" {
extern const std::byte bulkhead_builtin_model_begin[];
extern const std::byte bulkhead_builtin_model_end[];
}

namespace bulkhead::model {

std::span<const std::byte> builtin_model() {
  return {bulkhead_builtin_model_begin, bulkhead_builtin_model_end};
}

}  // namespace bulkhead::model

#else

namespace bulkhead::model {

std::span<const std::byte> builtin_model() {
  return {};
}

}  // namespace bulkhead::model

#endif
