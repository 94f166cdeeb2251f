// The table of system calls that a worker may make; everything that is not in it is refused. A row allows one call if
// all of its checks hold; rows of the same call are alternatives.
//
// The kernel's filter sees numbers, never what a pointer points to. So Landlock checks paths (files.hpp), and a call
// whose meaning lies in memory (clone3) is not in the table.
//
// The table applies for a process's whole life: there is no narrower one after the model is loaded, because drivers
// still need the important calls then. lavapipe compiles a kernel when it first runs and writes it to the cache
// folder (mkdir, open, flock, rename), and NVIDIA's driver may start threads, map memory and open device nodes late.
// A second filter could only remove calls that give an attacker nothing (a thread's own CPUs, read-ahead, a memfd),
// and to install it the first filter would have to allow seccomp() while drivers and model files are read.
//
// To add a call that another driver needs: run under `isolation.sandbox: log`, which names each call that would be
// refused. Add it with the narrowest checks that suffice, and extend the list that tests/unit/sandbox compares with
// this table.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace bulkhead::worker {

// The meaning of a value in the table that is known only in the process itself.
enum class Known : std::uint8_t {
  kNumber,   // the number in the row
  kProcess,  // this process's id
  kRegion,   // the descriptor of a region whose size the kernel does not protect; none: no descriptor
};

enum class Must : std::uint8_t {
  kNothing,  // no check; fills the array
  kEqual,    // (lower 32 bits & mask) == value, because the kernel reads no more of an int
  kDiffer,   // (lower 32 bits & mask) != value
  kBeZero,   // all 64 bits are zero: a null pointer
};

struct ArgumentCheck {
  Must must = Must::kNothing;
  std::uint8_t argument = 0;  // 0 to 5
  Known known = Known::kNumber;
  std::uint32_t value = 0;
  std::uint32_t mask = 0xffffffff;
};

struct AllowedCall {
  int number;  // the number on this architecture; negative: there is no such call
  const char* name;
  std::array<ArgumentCheck, 3> checks;
  const char* why;
};

std::span<const AllowedCall> allowed_calls();

// Calls that get the answer "no such call" (ENOSYS), so that the C library uses an older one.
std::span<const int> absent_calls();

// Calls with a number above this one are newer than the table, and also get "no such call".
inline constexpr std::uint32_t kNewestKnownCall = 462;

}  // namespace bulkhead::worker
