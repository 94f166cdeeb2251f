#include "config/base/random.hpp"

#include <sys/random.h>

#include <random>

namespace bulkhead {

std::uint64_t random_u64() {
  std::uint64_t number = 0;
  // A request for so few bytes always succeeds completely, and no signal interrupts it.
  if (::getrandom(&number, sizeof number, 0) == sizeof number) return number;
  std::random_device other;  // used if a filter of system calls refuses getrandom()
  return std::uint64_t{other()} << 32 | other();
}

}  // namespace bulkhead
