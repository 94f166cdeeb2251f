// The cache folders of a daemon's workers, which begin with what other workers of the tests have compiled.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <time.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "config/base/unique_fd.hpp"
#include "orchestrator/supervisor/cache_seal.hpp"
#include "tests/support/kernels.hpp"

namespace bulkhead::test {

// Make this before the daemon starts, and end it after the daemon.
class LentKernels {
 public:
  // `caches`: the folder that has the daemon's workers' folders. A worker is "MODEL-NUMBER", or "NAME=MODEL" if its
  // name does not tell whose kernels it runs.
  LentKernels(const std::filesystem::path& caches, const std::vector<std::string>& workers) {
    for (const std::string& worker : workers) {
      const std::size_t equals = worker.find('=');
      const std::string name = worker.substr(0, equals);
      const std::string pool =
          equals == std::string::npos ? pool_of(name) : worker.substr(equals + 1);
      lend(caches, name, pool);
      // A worker of the previous daemon may still be ending and hold its folder. The next worker then gets the folder
      // NAME%1.
      if (held(caches / (name + "%lock"))) lend(caches, name + "%1", pool);
    }
  }
  ~LentKernels() {
    for (const auto& [folder, pool] : folders_)
      keep_kernels(folder, pool);
  }
  LentKernels(const LentKernels&) = delete;
  LentKernels& operator=(const LentKernels&) = delete;

 private:
  void lend(const std::filesystem::path& caches, const std::string& folder,
            const std::string& pool) {
    lend_kernels(caches / folder, pool);
    seal(caches, folder);
    folders_.emplace_back(caches / folder, pool);
  }

  static bool held(const std::filesystem::path& lock) {
    const UniqueFd file(::open(lock.c_str(), O_RDWR | O_CLOEXEC));
    return file.valid() && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0;
  }

  // The daemon would delete unsealed kernels, and the worker would compile them again.
  static void seal(const std::filesystem::path& caches, const std::string& folder) {
    timespec later{};
    ::clock_gettime(CLOCK_REALTIME, &later);
    ++later.tv_sec;
    (void)orchestrator::CacheSeal(caches.string(), folder).make(later);
  }

  std::vector<std::pair<std::filesystem::path, std::string>> folders_;  // each with its pool
};

}  // namespace bulkhead::test
