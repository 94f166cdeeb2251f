// The cache folders of a daemon's workers, which begin with what other workers of the tests have compiled.
#pragma once

#include <time.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/supervisor/cache_seal.hpp"
#include "tests/support/kernels.hpp"

namespace bulkhead::test {

// Make this before the daemon starts, and end it after the daemon.
class LentKernels {
 public:
  // `caches`: the folder that has the daemon's workers' folders.
  LentKernels(const std::filesystem::path& caches, const std::vector<std::string>& workers) {
    for (const std::string& worker : workers) {
      // A worker of the previous daemon may still be ending and hold its folder. The next worker then gets the folder
      // NAME%1.
      for (const std::string& folder : {worker, worker + "%1"}) {
        folders_.push_back(caches / folder);
        lend_kernels(folders_.back());
        seal(caches, folder);
      }
    }
  }
  ~LentKernels() {
    for (const std::filesystem::path& folder : folders_)
      keep_kernels(folder);
  }
  LentKernels(const LentKernels&) = delete;
  LentKernels& operator=(const LentKernels&) = delete;

 private:
  // The daemon would delete unsealed kernels, and the worker would compile them again.
  static void seal(const std::filesystem::path& caches, const std::string& folder) {
    timespec later{};
    ::clock_gettime(CLOCK_REALTIME, &later);
    ++later.tv_sec;
    (void)orchestrator::CacheSeal(caches.string(), folder).make(later);
  }

  std::vector<std::filesystem::path> folders_;
};

}  // namespace bulkhead::test
