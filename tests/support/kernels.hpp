// Passes compiled kernels from one worker of the tests to the next. Each worker has its own cache folder by design, and
// the CPU's driver takes five seconds of a core to compile what a worker of one model runs. Workers before it have
// compiled most of that. So the tests have a folder of all kernels that their workers compiled: they link them into a
// worker's folder, and link what the worker compiles back for others. The driver writes each file under another name
// and renames it, never changes a file, and detects a broken one by its checksum.
//
// The driver's usual cache is not used for this. It also has the kernels of the tests of single kernels and of other
// programs, and a daemon reads all files of a worker's folder before each start.
#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>

namespace bulkhead::test {

// Returns the folder of what the tests' workers compiled. Empty: there is no place for it.
inline std::filesystem::path shared_kernels() {
  const char* const xdg = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  constexpr const char* kFolder = "bulkhead-tests/mesa_shader_cache";
  if (xdg != nullptr && xdg[0] == '/') return std::filesystem::path(xdg) / kFolder;
  if (home == nullptr || home[0] != '/') return {};
  return std::filesystem::path(home) / ".cache" / kFolder;
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

inline void link_kernels(const std::filesystem::path& from, const std::filesystem::path& to) {
  namespace fs = std::filesystem;
  const std::set<std::string> there = kernels_in(to);
  for (const std::string& kernel : kernels_in(from)) {
    if (there.contains(kernel)) continue;
    std::error_code failed;
    fs::create_directories((to / kernel).parent_path(), failed);
    fs::create_hard_link(from / kernel, to / kernel, failed);
    if (failed != std::errc::cross_device_link) continue;
    fs::copy_file(from / kernel, to / kernel, fs::copy_options::skip_existing, failed);
    const auto compiled = fs::last_write_time(from / kernel, failed);
    if (!failed) fs::last_write_time(to / kernel, compiled, failed);
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
inline void lend_kernels(const std::filesystem::path& cache) {
  if (shared_kernels().empty()) return;
  for (const std::filesystem::path& each : {shared_kernels(), cache / "mesa_shader_cache"})
    drop_old_kernels(each);
  link_kernels(shared_kernels(), cache / "mesa_shader_cache");
}
// Call it for workers that have ended.
inline void keep_kernels(const std::filesystem::path& cache) {
  if (!shared_kernels().empty()) link_kernels(cache / "mesa_shader_cache", shared_kernels());
}

}  // namespace bulkhead::test
