// Named steps of a program at which a test can have it die or stop. Compiled in only with
// BULKHEAD_FAULT_INJECTION; without it reach() is nothing. Each folder lists its points where it
// uses them (ipc/fault_points.hpp), so that a test can walk over all of them.
//
//   BULKHEAD_FAULTS=ACTION@[PROGRAM/]POINT[:N][,...]
//     ACTION    kill (SIGKILL) | stop (SIGSTOP) | abort (SIGABRT), each to the process itself
//     PROGRAM   only in the program of this file name: workers inherit the daemon's environment
//     POINT     a point's name
//     N         when the process gets there for the N-th time; 1 if left out
//   BULKHEAD_FAULTS_DONE=FILE
//     Of all processes that share FILE, one acts, once: its successor lives. Just before, it writes
//     there "ACTION POINT N NANOSECONDS" (CLOCK_MONOTONIC) and zeros; until then there are zeros.
//   BULKHEAD_FAULTS_COUNT=FILE
//     A process that ends by exit() writes there how often it came to each point, a line
//     "POINT HITS" each: what N to loop over. (Not a worker in its sandbox.)
//
// Example: BULKHEAD_FAULTS=kill@bulkhead-worker/ipc.publish:100
//
// Any thread. A plan that can't be read ends the program with a message: a test with a misspelt
// plan must not pass.
#pragma once

namespace bulkhead::fault {

#ifdef BULKHEAD_FAULT_INJECTION
inline constexpr bool kCompiledIn = true;
namespace detail {
extern bool active;  // set before main; false: nothing is planned or counted
void reached(const char* point);
bool due(const char* point);
}  // namespace detail

// The process is at `point`; it may not return.
inline void reach(const char* point) {
  if (detail::active) detail::reached(point);
}
// Whether the next reach(point) acts, for a step that must first be left half done.
inline bool due(const char* point) {
  return detail::active && detail::due(point);
}
#else
inline constexpr bool kCompiledIn = false;
inline constexpr void reach(const char*) {}
inline constexpr bool due(const char*) {
  return false;
}
#endif

}  // namespace bulkhead::fault
