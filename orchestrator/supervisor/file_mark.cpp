#include "orchestrator/supervisor/file_mark.hpp"

#include <sys/stat.h>

#include <spdlog/fmt/fmt.h>

namespace bulkhead::orchestrator {

std::string file_mark_of(const std::string& path) {
  struct stat info {};
  if (path.empty() || path == "builtin" || ::stat(path.c_str(), &info) != 0) return "-";
  return fmt::format("{}@{}.{:09}", info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

}  // namespace bulkhead::orchestrator
