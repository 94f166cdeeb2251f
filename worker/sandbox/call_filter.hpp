// The kernel's program for the table of allowed calls (allowed_calls.hpp): built here, instruction by
// instruction, because a filter must compare exactly the 32 bits that the kernel reads of an int: a
// comparison of 64 is got around by setting one of the others.
//
//     other architecture, or x32's numbers  ->  EPERM
//     a binary search for the number        ->  not in the table: refused
//     its rows' checks, one row after the other; all of a row's hold  ->  allowed
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
  kErrno,   // EPERM: drivers try some calls and go on without
  kNotify,  // the call waits for a listener's word (call_log.hpp), and is then made
};

struct CallContext {
  pid_t process = 0;
  int region = -1;               // -1: none whose size must be kept by the filter
  std::vector<int> also;         // further calls, whatever their arguments
  std::vector<int> always_told;  // kNotify: calls that the listener must see, allowed or not
};

std::vector<sock_filter> build_call_filter(const CallContext& context, Refusal refusal);

// What the kernel would answer: the filter's program run here, over one call. SECCOMP_RET_*.
std::uint32_t judge(std::span<const sock_filter> program, const seccomp_data& call);

// Puts it up, for this thread and those that it makes. With kNotify the result is the listener's
// descriptor; the error then is kUnsupported where the kernel has none (before 5.5), or there is one
// already.
Result<UniqueFd> load_call_filter(std::span<const sock_filter> program, Refusal refusal);

// "openat", or "call 462". Of calls of this machine's own kind.
std::string call_name(int number);
// By name; kInvalidArgument says which name is none. Names are separated by commas or spaces.
Result<std::vector<int>> calls_by_name(const std::string& names);

}  // namespace bulkhead::worker
