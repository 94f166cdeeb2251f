// Passes compiled kernels from one worker of the tests to the next. Each worker has its own cache folder by design, and
// the CPU's driver takes five seconds of a core to compile what a worker of one model runs. Workers before it have
// compiled most of that. So the tests have pools of the kernels that their workers compiled: they link a pool into a
// worker's folder, and link what the worker compiles back for others. The driver writes each file under another name
// and renames it, never changes a file, and detects a broken one by its checksum.
//
// A model has a pool of its own, because a daemon reads and hashes all files of a worker's folder before each start.
// The pool `common` has the kernels that workers of two models have compiled, and every worker gets it.
//
// The driver's usual cache is not used for this. It also has the kernels of the tests of single kernels and of other
// programs.
#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>

namespace bulkhead::test {

constexpr const char* kCommonPool = "common";

// Returns the folder that contains the pools. Empty: there is no place for them.
inline std::filesystem::path kernel_pools() {
  const char* const xdg = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  constexpr const char* kFolder = "bulkhead-tests/kernels";
  if (xdg != nullptr && xdg[0] == '/') return std::filesystem::path(xdg) / kFolder;
  if (home == nullptr || home[0] != '/') return {};
  return std::filesystem::path(home) / ".cache" / kFolder;
}

// Returns the pool of a worker by its name MODEL-NUMBER.
inline std::string pool_of(const std::string& worker) {
  return worker.substr(0, worker.rfind('-'));
}

// Returns the kernels in a folder of Mesa's cache: files in folders like "ab/cdef...". Other files, such as the index,
// are not shared.
inline std::set<std::string> kernels_in(const std::filesystem::path& cache) {
  namespace fs = std::filesystem;
  std::set<std::string> kernels;
  std::error_code none;
  for (fs::directory_iterator folder(cache, none), end; !none && folder != end;
       folder.increment(none)) {
    const std::string name = folder->path().filename().string();
    if (name.size() != 2) continue;
    std::error_code inner;
    for (fs::directory_iterator file(folder->path(), inner); !inner && file != end;
         file.increment(inner)) {
      if (!file->path().has_extension())  // with one it is still being written
        kernels.insert(name + "/" + file->path().filename().string());
    }
  }
  return kernels;
}

inline void link_kernel(const std::filesystem::path& from, const std::filesystem::path& to,
                        const std::string& kernel) {
  namespace fs = std::filesystem;
  std::error_code failed;
  fs::create_directories((to / kernel).parent_path(), failed);
  fs::create_hard_link(from / kernel, to / kernel, failed);
  if (failed != std::errc::cross_device_link) return;
  fs::copy_file(from / kernel, to / kernel, fs::copy_options::skip_existing, failed);
  const auto compiled = fs::last_write_time(from / kernel, failed);
  if (!failed) fs::last_write_time(to / kernel, compiled, failed);
}

inline void link_kernels(const std::filesystem::path& from, const std::filesystem::path& to) {
  const std::set<std::string> there = kernels_in(to);
  for (const std::string& kernel : kernels_in(from)) {
    if (!there.contains(kernel)) link_kernel(from, to, kernel);
  }
}

// Removes kernels that a driver compiled two weeks ago or earlier: most of them belong to sources that have changed.
// Otherwise the folders would grow, and a daemon ends a worker whose folder takes 2 GiB (isolation.cache_mb).
inline void drop_old_kernels(const std::filesystem::path& cache) {
  namespace fs = std::filesystem;
  const auto oldest = fs::file_time_type::clock::now() - std::chrono::hours(14 * 24);
  for (const std::string& kernel : kernels_in(cache)) {
    std::error_code failed;
    const auto compiled = fs::last_write_time(cache / kernel, failed);
    if (!failed && compiled < oldest) fs::remove(cache / kernel, failed);
  }
}

// Call it for a worker that will have this cache folder.
inline void lend_kernels(const std::filesystem::path& cache, const std::string& pool) {
  const std::filesystem::path pools = kernel_pools(), kernels = cache / "mesa_shader_cache";
  if (pools.empty()) return;
  for (const std::filesystem::path& each : {pools / pool, pools / kCommonPool, kernels})
    drop_old_kernels(each);
  for (const char* const each : {pool.c_str(), kCommonPool})
    link_kernels(pools / each, kernels);
}

// Call it for workers that have ended.
inline void keep_kernels(const std::filesystem::path& cache, const std::string& pool) {
  namespace fs = std::filesystem;
  const fs::path pools = kernel_pools(), kernels = cache / "mesa_shader_cache";
  if (pools.empty()) return;
  std::error_code failed;
  std::set<std::string> others;
  for (fs::directory_iterator each(pools, failed), end; !failed && each != end;
       each.increment(failed))
    others.insert(each->path().filename().string());
  others.erase(pool);
  others.erase(kCommonPool);
  const std::set<std::string> own = kernels_in(pools / pool),
                              common = kernels_in(pools / kCommonPool);
  for (const std::string& kernel : kernels_in(kernels)) {
    if (own.contains(kernel) || common.contains(kernel)) continue;
    link_kernel(kernels, pools / pool, kernel);
    for (const std::string& other : others) {
      if (!fs::exists(pools / other / kernel, failed)) continue;
      link_kernel(kernels, pools / kCommonPool, kernel);
      break;
    }
  }
}

}  // namespace bulkhead::test
