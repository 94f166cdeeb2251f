// Random numbers for seeds, names and ids. Nothing that a model computes depends on them but through a
// request's seed, which is written down.
#pragma once

#include <cstdint>

namespace bulkhead {

// 64 bits from the system that nobody can guess. A system call each; any thread.
std::uint64_t random_u64();

}  // namespace bulkhead
