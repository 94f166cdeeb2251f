// A script that starts the daemon, for tests of what a daemon inherits from the process that starts it.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

#include "config/base/unique_fd.hpp"

namespace bulkhead::test {

// A shell script in /tmp with these lines, which is removed with the object.
class DaemonScript {
 public:
  explicit DaemonScript(const std::string& lines) {
    const std::string text = "#!/bin/sh\n" + lines;
    // The file is closed at the end, because a file that is open for writing can't be started.
    const UniqueFd file(::mkostemp(path_.data(), O_CLOEXEC));
    EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(::fchmod(file.get(), 0700), 0);
  }
  ~DaemonScript() { ::unlink(path_.c_str()); }
  DaemonScript(const DaemonScript&) = delete;
  DaemonScript& operator=(const DaemonScript&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/bulkhead-script-XXXXXX";
};

}  // namespace bulkhead::test
