// The kernel's program for the table of allowed calls (allowed_calls.hpp). It is built here instruction by
// instruction, because a filter must compare exactly the 32 bits that the kernel reads of an int: an attacker could
// evade a comparison of 64 bits by setting one of the others.
//
//     another architecture, or x32's numbers  ->  EPERM
//     a binary search for the number        ->  not in the table: refused
//     the rows' checks, one row after the other; if all checks of a row hold  ->  allowed
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "worker/sandbox/allowed_calls.hpp"

namespace bulkhead::worker {

enum class Refusal : std::uint8_t {
  kErrno,   // EPERM: drivers try some calls and continue without them
  kNotify,  // the call waits for a listener's answer (call_log.hpp), and is then made
};

struct CallContext {
  pid_t process = 0;
  int region = -1;               // -1: the filter protects no region's size
  std::vector<int> also;         // further calls, allowed with any arguments
  std::vector<int> always_told;  // kNotify: calls that the listener must see, allowed or not
};

std::vector<sock_filter> build_call_filter(const CallContext& context, Refusal refusal);

// Returns what the kernel would answer, by running the filter's program here for one call: SECCOMP_RET_*.
std::uint32_t judge(std::span<const sock_filter> program, const seccomp_data& call);

// Installs it for this thread and for the threads that it starts. With kNotify the result is the listener's
// descriptor; the error is kUnsupported if the kernel has none (before 5.5), or if there is one already.
Result<UniqueFd> load_call_filter(std::span<const sock_filter> program, Refusal refusal);

// Returns "openat", or "call 462", for calls of this machine's architecture.
std::string call_name(int number);
// Returns calls by name; kInvalidArgument names the unknown one. Names are separated by commas or spaces.
Result<std::vector<int>> calls_by_name(const std::string& names);

}  // namespace bulkhead::worker
