// Clang sometimes leaves out one of fmt's function templates although it has instantiated it, and Debian's
// library, which GCC made, does not have it under that name. This file makes it explicitly.
#include <string>

#include <spdlog/spdlog.h>

namespace bulkhead {

void never_called(const std::string& text) {
  spdlog::debug("{}", text);
}

}  // namespace bulkhead
