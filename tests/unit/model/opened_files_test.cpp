// A worker can open again, by the same path, the files that it opened before it became another
// user.
#include "worker/model/opened_files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.hpp"

namespace bulkhead::model {
namespace {

namespace fs = std::filesystem;

std::string read_all(const std::string& path) {
  const UniqueFd file = open_to_read(path);
  char text[16] = {};
  const ssize_t got = ::read(file.get(), text, sizeof text);
  return got < 0 ? "no file" : std::string(text, static_cast<std::size_t>(got));
}

TEST(OpenedFiles, AreThereAgainUntilTheyAreClosed) {
  const test::TemporaryFolder temporary("opened");
  const fs::path& folder = temporary.path();
  const std::string early = folder / "early", late = folder / "late";
  std::ofstream(early) << "early";
  open_early({early, late, folder / "missing"});
  std::ofstream(late) << "late";
  // The user that the worker becomes may be unable to find them.
  fs::remove(early);
  for (int times = 0; times < 2; ++times)
    EXPECT_EQ(read_all(early), "early");
  EXPECT_EQ(read_all(late), "late");
  struct stat status {};
  EXPECT_TRUE(look_at(early, status));
  EXPECT_EQ(status.st_size, 5);
  EXPECT_FALSE(look_at(folder / "missing", status));
  const UniqueFd kept = open_to_read(early);
  close_early();
  EXPECT_FALSE(open_to_read(early).valid());
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(::lseek(kept.get(), 0, SEEK_END), 5);
}

}  // namespace
}  // namespace bulkhead::model
