// Clang 14 sometimes leaves out a function template of fmt's that it has instantiated, and Debian's
// library, made by GCC, does not have it under that name. Here it is made for sure.
#include <string>

#include <spdlog/spdlog.h>

namespace bulkhead::fuzz {

void never_called(const std::string& text) {
  spdlog::debug("{}", text);
}

}  // namespace bulkhead::fuzz
