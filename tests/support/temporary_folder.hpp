// A folder for the files of one test.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace bulkhead::test {

// Makes a new folder /tmp/bulkhead-PURPOSE-XXXXXX. The destructor removes it with everything in it, so declare the
// object before the processes that use the folder.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& purpose) {
    std::string name = "/tmp/bulkhead-" + purpose + "-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace bulkhead::test
