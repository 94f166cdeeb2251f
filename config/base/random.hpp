// Random numbers for seeds, names and ids. A model's output depends on them only through a request's seed, which is
// recorded.
#pragma once

#include <cstdint>

namespace bulkhead {

// Returns 64 bits from the system that nobody can guess. Each call is a system call; any thread.
std::uint64_t random_u64();

}  // namespace bulkhead
