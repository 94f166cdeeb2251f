// A heap that can refuse memory to all threads but the program's first.
#pragma once

#include <atomic>

namespace bulkhead::test {

extern std::atomic<bool> short_of_memory;
extern std::atomic<int> granted;  // this many more allocations succeed
extern std::atomic<int> refusals;

}  // namespace bulkhead::test
