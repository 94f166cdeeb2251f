// Which system calls a worker may make: one table, and all that is not in it is refused. A row lets one
// call through where all of its checks hold; rows of the same call are alternatives.
//
// The kernel's filter sees numbers, never what a pointer points to. So paths are Landlock's business
// (files.hpp), and a call whose meaning lies in memory (clone3) is not in the table.
//
// The table holds for a process's whole life: there is no narrower one for the time after it has loaded its model.
// Drivers go on doing then what matters: lavapipe compiles a kernel when it first runs and writes it to the cache
// folder (mkdir, open, flock, rename), and NVIDIA's driver may start threads, map memory and open device nodes late. A
// second filter could only take away calls that give an attacker nothing (a thread's own CPUs, read-ahead, a memfd),
// and to put it up the first one would have to allow seccomp() while drivers and model files are read.
//
// To add a call that another driver needs: run under `isolation.sandbox: log`, which names each call
// that would be refused, add it with the narrowest checks that do, and extend the list that
// tests/unit/sandbox compares this table with.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace bulkhead::worker {

// What a value of the table stands for, when it is known only in the process itself.
enum class Known : std::uint8_t {
  kNumber,   // what the row says
  kProcess,  // this process's id
  kRegion,   // the descriptor of a region whose size the kernel does not guard; none: no descriptor
};

enum class Must : std::uint8_t {
  kNothing,  // no check: fills the array
  kEqual,    // (lower 32 bits & mask) == value: the kernel reads no more of an int
  kDiffer,   // (lower 32 bits & mask) != value
  kBeZero,   // all 64 bits: a null pointer
};

struct ArgumentCheck {
  Must must = Must::kNothing;
  std::uint8_t argument = 0;  // 0 to 5
  Known known = Known::kNumber;
  std::uint32_t value = 0;
  std::uint32_t mask = 0xffffffff;
};

struct AllowedCall {
  int number;  // of this architecture; negative: it has no such call
  const char* name;
  std::array<ArgumentCheck, 3> checks;
  const char* why;
};

std::span<const AllowedCall> allowed_calls();

// Calls that are answered "no such call" (ENOSYS), so that the C library takes an older one.
std::span<const int> absent_calls();

// Calls with a number above this one are newer than the table: also "no such call".
inline constexpr std::uint32_t kNewestKnownCall = 462;

}  // namespace bulkhead::worker
