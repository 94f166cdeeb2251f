// Passes compiled kernels from one test to the next. Each worker has its own cache folder by design, and the CPU's
// driver takes five seconds of a core to compile what a worker of one model runs. Other workers and the tests of
// kernels have compiled most of that before. So the tests copy the driver's usual cache (where programs without a
// folder of their own keep theirs) into a worker's folder, and copy what the worker compiles back for others. The
// files are linked: the driver writes each file under another name and renames it, never changes a file, and detects
// a broken one by its checksum.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace bulkhead::test {

// Returns the folder of Mesa's cache. Empty: there is none.
inline std::filesystem::path shared_kernels() {
  const char* const xdg = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (xdg != nullptr && xdg[0] == '/') return std::filesystem::path(xdg) / "mesa_shader_cache";
  if (home == nullptr || home[0] != '/') return {};
  return std::filesystem::path(home) / ".cache" / "mesa_shader_cache";
}

inline void link_kernels(const std::filesystem::path& from, const std::filesystem::path& to) {
  namespace fs = std::filesystem;
  std::error_code none;
  for (fs::directory_iterator folder(from, none), end; !none && folder != end;
       folder.increment(none)) {
    // Files in folders like "ab/cdef..." are kernels; other files, such as the index, are not shared.
    if (folder->path().filename().string().size() != 2) continue;
    const fs::path there = to / folder->path().filename();
    std::error_code inner;
    fs::create_directories(there, inner);
    for (fs::directory_iterator file(folder->path(), inner); !inner && file != end;
         file.increment(inner)) {
      const fs::path name = file->path().filename();
      std::error_code failed;
      if (name.has_extension()) continue;  // still being written
      fs::create_hard_link(file->path(), there / name, failed);
      if (failed == std::errc::cross_device_link)
        fs::copy_file(file->path(), there / name, fs::copy_options::skip_existing, failed);
    }
  }
}

// Call it for a worker that will have this cache folder.
inline void lend_kernels(const std::filesystem::path& cache) {
  if (!shared_kernels().empty()) link_kernels(shared_kernels(), cache / "mesa_shader_cache");
}
// Call it for workers that have ended.
inline void keep_kernels(const std::filesystem::path& cache) {
  if (!shared_kernels().empty()) link_kernels(cache / "mesa_shader_cache", shared_kernels());
}

}  // namespace bulkhead::test
