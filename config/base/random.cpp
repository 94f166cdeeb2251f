#include "config/base/random.hpp"

#include <sys/random.h>

#include <random>

namespace bulkhead {

std::uint64_t random_u64() {
  std::uint64_t number = 0;
  // So few bytes come whole, and no signal interrupts them.
  if (::getrandom(&number, sizeof number, 0) == sizeof number) return number;
  std::random_device other;  // where a filter of system calls refuses that one
  return std::uint64_t{other()} << 32 | other();
}

}  // namespace bulkhead
