// Named steps of a program at which a test can make it die or stop. They are compiled in only with
// BULKHEAD_FAULT_INJECTION; without it reach() does nothing. Each folder lists its points in a file of its own
// (ipc/fault_points.hpp), so that a test can go through all of them.
//
//   BULKHEAD_FAULTS=ACTION@[PROGRAM/]POINT[:N][,...]
//     ACTION    kill (SIGKILL), stop (SIGSTOP) or abort (SIGABRT): the process sends itself this signal.
//               fail or corrupt, only at points that support it: the step reports a failure, or damages
//               what it produces
//     PROGRAM   act only in the program with this file name: workers inherit the daemon's environment
//     POINT     the point's name
//     N         act when the process reaches the point for the N-th time; 1 if left out
//   BULKHEAD_FAULTS_DONE=FILE
//     Only one of all processes that share FILE acts, and only once, so its successor survives. Just before
//     it acts, it writes "ACTION POINT N NANOSECONDS" (CLOCK_MONOTONIC) into FILE, padded with zeros. Until
//     then FILE contains zeros.
//   BULKHEAD_FAULTS_LIVE=FILE
//     A plan that can change while processes run: FILE holds a LivePlan, which all processes map. Each new
//     generation restarts the counts, and one process acts once in it.
//   BULKHEAD_FAULTS_COUNT=FILE
//     A process that ends by exit() writes how often it reached each point, one line "POINT HITS" for each.
//     A test takes from it the N to loop over. A worker in its sandbox can't write it.
//
// Example: BULKHEAD_FAULTS=kill@bulkhead-worker/ipc.publish:100
//
// Any thread. A plan that can't be parsed ends the program with a message, because a test with a misspelt plan must
// not pass.
#pragma once

#include <atomic>
#include <cstdint>

namespace bulkhead::fault {

// The writer sets `generation` to an odd number, writes the plan (as in BULKHEAD_FAULTS), and sets the next even
// number. A process that is about to act first sets `acted` to the generation.
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

// Reports that the process has reached `point`. If the plan says so, the process dies or stops
// here.
inline void reach(const char* point) {
  if (detail::active) (void)detail::reached(point);
}
// Reports that the process has reached `point`, where a step can fail. Returns true if the plan makes this step fail.
inline bool fails(const char* point) {
  return detail::active && detail::reached(point) == detail::Deed::kFail;
}
// Tells the fault plan that the process has reached `point`. The caller calls this right after it has computed a
// result. Returns true if the fault plan demands that the caller damage this result.
inline bool corrupts(const char* point) {
  return detail::active && detail::reached(point) == detail::Deed::kCorrupt;
}
// Returns whether the next reach(point) acts. A step that must be left half done before the process dies asks
// this.
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
