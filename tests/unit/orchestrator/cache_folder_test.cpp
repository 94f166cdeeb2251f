// Deleting what a worker that lied may have put into its folder: however deep, whoever may look into
// it, wherever its links lead.
#include "orchestrator/supervisor/cache_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {
namespace {

namespace fs = std::filesystem;

class Removal : public testing::Test {
 protected:
  Removal() {
    char name[] = "/tmp/bulkhead-removal-XXXXXX";
    root_ = ::mkdtemp(name);
    folder_ = root_ / "worker-0";
    fs::create_directory(folder_);
  }
  ~Removal() override { fs::remove_all(root_); }

  fs::path root_, folder_;
};

TEST_F(Removal, OfWhatIsNotThereIsDone) {
  EXPECT_TRUE(CacheFolder::remove_all((root_ / "nothing").string()));
}

TEST_F(Removal, FollowsNoLink) {
  const fs::path kept = root_ / "kept";
  fs::create_directory(kept);
  std::ofstream(kept / "file") << "x";
  fs::create_directory(folder_ / "inner");
  fs::create_directory_symlink(kept, folder_ / "link");
  fs::create_directory_symlink(kept, folder_ / "inner" / "link");
  fs::create_symlink(kept / "file", folder_ / "inner" / "to-file");
  EXPECT_TRUE(CacheFolder::remove_all(folder_.string()));
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_TRUE(fs::exists(kept / "file"));
  // Nor where the folder itself is one.
  fs::create_directory_symlink(kept, folder_);
  EXPECT_FALSE(CacheFolder::remove_all(folder_.string()));
  EXPECT_TRUE(fs::exists(kept / "file"));
}

// A name of each would be longer than any path may be, and a descriptor of each more than a process
// may have.
TEST_F(Removal, OfADeepAndWideTree) {
  UniqueFd at(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int depth = 0; depth < 1500; ++depth) {
    ASSERT_EQ(::mkdirat(at.get(), "deeper", 0700), 0);
    if (depth % 500 == 0) {
      ASSERT_EQ(::mkdirat(at.get(), "beside", 0700), 0);
      ASSERT_EQ(::mkdirat(at.get(), "d1", 0700), 0);  // as it may call one itself
    }
    UniqueFd next(::openat(at.get(), "deeper", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(next.valid());
    at = std::move(next);
  }
  for (int i = 0; i < 5000; ++i)
    std::ofstream(folder_ / ("file" + std::to_string(i))) << i;
  EXPECT_TRUE(CacheFolder::remove_all(folder_.string()));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(Removal, OfFoldersThatNobodyMayLookInto) {
  fs::create_directories(folder_ / "a" / "b" / "c");
  std::ofstream(folder_ / "a" / "b" / "file") << "x";
  for (const fs::path& each : {folder_ / "a" / "b", folder_ / "a", folder_})
    ASSERT_EQ(::chmod(each.c_str(), 0), 0);
  EXPECT_TRUE(CacheFolder::remove_all(folder_.string()));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(Removal, OfAWorkersFolderIsItsOwnAndOnlyOnDemand) {
  CacheFolder cache(root_.string(), "worker-0");
  EXPECT_EQ(cache.arguments(), (std::vector<std::string>{"--cache", folder_.string()}));
  EXPECT_TRUE(fs::exists(folder_));
  fs::create_directory(root_ / "worker-1");
  cache.drop();
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_TRUE(fs::exists(root_ / "worker-1"));
  cache.drop();  // there is none
  EXPECT_EQ(cache.path(), folder_.string());
  EXPECT_EQ(CacheFolder("", "worker-0").arguments(), std::vector<std::string>{"--no-cache"});
}

}  // namespace
}  // namespace bulkhead::orchestrator
