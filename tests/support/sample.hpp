// How much of a long repetition a test runs. The release build tries every cut and every seed. A sanitizer build looks
// at memory and threads, not at answers: a sample takes it through the same code.
#pragma once

#include <cstddef>

namespace bulkhead::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSample = true;
#else
inline constexpr bool kSample = false;
#endif

// The step of a loop over cuts. It is a prime, so that the loop meets cuts of all kinds.
inline constexpr std::size_t kStride = kSample ? 7 : 1;

// Returns how many of `all` rounds to run, or how long a text is that must be read in linear time; `all` must not be 0.
constexpr int rounds(int all) {
  return kSample ? (all + 7) / 8 : all;
}

}  // namespace bulkhead::test
