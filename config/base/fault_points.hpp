// Named steps of a program at which a test can have it die or stop. Compiled in only with
// BULKHEAD_FAULT_INJECTION; without it reach() is nothing. Each folder lists its points where it
// uses them (ipc/fault_points.hpp), so that a test can walk over all of them.
//
//   BULKHEAD_FAULTS=ACTION@[PROGRAM/]POINT[:N][,...]
//     ACTION    kill (SIGKILL) | stop (SIGSTOP) | abort (SIGABRT), each to the process itself; fail |
//               corrupt, at the points that ask for it: the step reports that it failed, or spoils
//               what it makes
//     PROGRAM   only in the program of this file name: workers inherit the daemon's environment
//     POINT     a point's name
//     N         when the process gets there for the N-th time; 1 if left out
//   BULKHEAD_FAULTS_DONE=FILE
//     Of all processes that share FILE, one acts, once: its successor lives. Just before, it writes
//     there "ACTION POINT N NANOSECONDS" (CLOCK_MONOTONIC) and zeros; until then there are zeros.
//   BULKHEAD_FAULTS_LIVE=FILE
//     A plan that changes while processes run: FILE is a LivePlan, mapped by all. With each
//     generation counting starts anew, and one process acts once.
//   BULKHEAD_FAULTS_COUNT=FILE
//     A process that ends by exit() writes there how often it came to each point, a line
//     "POINT HITS" each: what N to loop over. (Not a worker in its sandbox.)
//
// Example: BULKHEAD_FAULTS=kill@bulkhead-worker/ipc.publish:100
//
// Any thread. A plan that can't be read ends the program with a message: a test with a misspelt
// plan must not pass.
#pragma once

#include <atomic>
#include <cstdint>

namespace bulkhead::fault {

// Writer: `generation` to an odd number, then the plan (as BULKHEAD_FAULTS), then the next even
// one. Who acts sets `acted` to the generation just before.
struct LivePlan {
  std::atomic<std::uint64_t> generation;
  std::atomic<std::uint64_t> acted;
  char plan[240];
};
static_assert(sizeof(LivePlan) == 256 && std::atomic<std::uint64_t>::is_always_lock_free);

#ifdef BULKHEAD_FAULT_INJECTION
inline constexpr bool kCompiledIn = true;
namespace detail {
extern bool active;  // set before main; false: nothing is planned or counted
enum class Deed { kNone, kFail, kCorrupt };
Deed reached(const char* point);
bool due(const char* point);
}  // namespace detail

// The process is at `point`; it may not return.
inline void reach(const char* point) {
  if (detail::active) (void)detail::reached(point);
}
// The same at a step that can fail: true when the plan wants it to.
inline bool fails(const char* point) {
  return detail::active && detail::reached(point) == detail::Deed::kFail;
}
// The same at a step that makes something: true when the plan wants that spoilt.
inline bool corrupts(const char* point) {
  return detail::active && detail::reached(point) == detail::Deed::kCorrupt;
}
// Whether the next reach(point) acts, for a step that must first be left half done.
inline bool due(const char* point) {
  return detail::active && detail::due(point);
}
#else
inline constexpr bool kCompiledIn = false;
inline constexpr void reach(const char*) {}
inline constexpr bool fails(const char*) {
  return false;
}
inline constexpr bool corrupts(const char*) {
  return false;
}
inline constexpr bool due(const char*) {
  return false;
}
#endif

}  // namespace bulkhead::fault
