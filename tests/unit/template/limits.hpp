// The limits for every template and conversation: 1 s of the processor, and 64 MiB beyond 24 bytes for each byte of the
// request.
#pragma once

#include <time.h>

#include <cstddef>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace bulkhead::jinja::testing {

// Measures the thread's time and the process's memory from its construction to its end, and fails the test if they
// exceed the limits. Sanitizers use more of both, so nothing is measured with them.
class WithinLimits {
 public:
  WithinLimits() : began_(thread_seconds()) {
    std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
    began_kib_ = peak_kib();
  }
  ~WithinLimits() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LE(thread_seconds() - began_, 1.0);
    EXPECT_LE(peak_kib(), began_kib_ + (std::size_t{64} << 10));
#endif
  }
  WithinLimits(const WithinLimits&) = delete;
  WithinLimits& operator=(const WithinLimits&) = delete;

 private:
  static double thread_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  static std::size_t peak_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      std::size_t kib = 0;
      if (word == "VmHWM:" && status >> kib) return kib;
    }
    return 0;
  }

  double began_;
  std::size_t began_kib_ = 0;
};

}  // namespace bulkhead::jinja::testing
