#include "worker/model/opened_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <utility>

namespace bulkhead::model {
namespace {

// O_NONBLOCK, because the open of a pipe without a writer must not hang.
constexpr int kOpen = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

std::map<std::string, UniqueFd>& opened() {
  static std::map<std::string, UniqueFd> all;
  return all;
}

}  // namespace

void open_early(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (UniqueFd fd(::open(path.c_str(), kOpen)); fd.valid()) opened()[path] = std::move(fd);
  }
}

UniqueFd open_to_read(const std::string& path) {
  const auto early = opened().find(path);
  if (early == opened().end()) return UniqueFd(::open(path.c_str(), kOpen));
  // Both descriptors share one position, and who opened the file before may have read some of it.
  UniqueFd again(::fcntl(early->second.get(), F_DUPFD_CLOEXEC, 0));
  if (again.valid()) (void)::lseek(again.get(), 0, SEEK_SET);
  return again;
}

bool look_at(const std::string& path, struct stat& status) {
  const auto early = opened().find(path);
  return (early == opened().end() ? ::stat(path.c_str(), &status)
                                  : ::fstat(early->second.get(), &status)) == 0;
}

void close_early() {
  opened().clear();
}

}  // namespace bulkhead::model
