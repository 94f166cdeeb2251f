// The daemon deletes everything that a worker that broke a rule may have put into its folder: however deep it is,
// whatever its permissions are, and wherever its links lead.
#include "orchestrator/supervisor/cache_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

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
  ~Removal() override {
    // The thread that deletes may be working there, too.
    for (int i = 0; i < 100 && !CacheFolder::remove_all(root_.string()); ++i) {
    }
  }

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
  // The same if the folder itself is a link.
  fs::create_directory_symlink(kept, folder_);
  EXPECT_TRUE(CacheFolder::remove_all(folder_.string()));
  EXPECT_FALSE(fs::is_symlink(folder_));
  EXPECT_TRUE(fs::exists(kept / "file"));
}

// A path of all names would be longer than any path may be, and a descriptor for each folder would be more than a
// process may have.
TEST_F(Removal, OfADeepAndWideTree) {
  UniqueFd at(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int depth = 0; depth < 1500; ++depth) {
    ASSERT_EQ(::mkdirat(at.get(), "deeper", 0700), 0);
    if (depth % 500 == 0) {
      ASSERT_EQ(::mkdirat(at.get(), "beside", 0700), 0);
      ASSERT_EQ(::mkdirat(at.get(), "d1", 0700), 0);  // the removal may use such a name itself
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

// The open of a pipe for reading would wait until somebody writes to it.
TEST_F(Removal, WaitsForNoPipe) {
  fs::create_directories(folder_ / "a" / "b");
  for (const fs::path& pipe :
       {folder_ / "pipe", folder_ / "a" / "pipe", folder_ / "a" / "b" / "pipe"})
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(CacheFolder::remove_all(folder_.string()));
  EXPECT_FALSE(fs::exists(folder_));
  // The same if the folder itself is a pipe.
  ASSERT_EQ(::mkfifo(folder_.c_str(), 0600), 0);
  EXPECT_TRUE(CacheFolder::remove_all(folder_.string()));
  EXPECT_FALSE(fs::exists(folder_));
}

// A process may fill the folder as fast as the daemon empties it.
TEST_F(Removal, EndsAfterItsLimit) {
  for (int i = 0; i < 100; ++i) {
    fs::create_directories(folder_ / std::to_string(i) / "x" / "y");
    std::ofstream(folder_ / std::to_string(i) / "x" / "file") << i;
  }
  EXPECT_FALSE(CacheFolder::remove_all(folder_.string(), 50));
  EXPECT_TRUE(fs::exists(folder_));
  EXPECT_TRUE(CacheFolder::remove_all(folder_.string()));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(Removal, OfLongNamesAndOddOnesHarmsNoOther) {
  std::vector<std::string> names = {".dropped-x-0", ".dropped-", "..-0", "a.dropped-0"};
  for (const std::size_t length : {200U, 243U, 244U, 255U, 256U, 4000U})
    names.push_back(std::string(length - 2, 'n') + "-0");
  std::vector<CacheFolder> folders;
  std::set<std::string> paths;
  for (const std::string& name : names) {
    folders.emplace_back(root_.string(), name);
    const fs::path path = folders.back().path();
    EXPECT_EQ(path.parent_path(), root_);
    EXPECT_TRUE(paths.insert(path.string()).second) << path;
    EXPECT_TRUE(fs::create_directory(path)) << path;
    std::ofstream(path / "file") << "x";
  }
  // The daemon must not delete these folders.
  const CacheFolder other(root_.string(), "other-0");
  fs::create_directory(root_ / ".dropped-other-0-0");
  const CacheFolder sweeps(root_.string(), "sweeps-0");
  for (int i = 0; i < 10000 && fs::exists(root_ / ".dropped-other-0-0"); ++i)
    ::usleep(1000);
  EXPECT_FALSE(fs::exists(root_ / ".dropped-other-0-0"));
  for (const std::string& path : paths)
    EXPECT_TRUE(fs::exists(path + "/file")) << path;
  for (CacheFolder& folder : folders) {
    const std::string before = folder.path();
    folder.drop("a test");
    EXPECT_EQ(folder.path(), before) << "it could not be taken away";
    EXPECT_FALSE(fs::exists(before));
    paths.erase(before);
    for (const std::string& path : paths)
      EXPECT_TRUE(fs::exists(path + "/file")) << path;
  }
}

// Each daemon of a user has its own folder, whatever the workers' names are.
TEST_F(Removal, OfAnotherDaemonsFolderDoesNotHappen) {
  auto first = std::make_unique<CacheFolder>(root_.string(), "worker-0");
  CacheFolder second(root_.string(), "worker-0");
  EXPECT_EQ(first->path(), folder_.string());
  EXPECT_EQ(second.path(), folder_.string() + "%1");
  fs::create_directory(second.path());
  second.drop("a test");
  EXPECT_TRUE(fs::exists(folder_));
  EXPECT_FALSE(fs::exists(second.path()));
  // When a daemon has ended, any other daemon may take its folder.
  first.reset();
  EXPECT_EQ(CacheFolder(root_.string(), "worker-0").path(), folder_.string());
  // Takes all the names that there are.
  std::vector<CacheFolder> many;
  for (int i = 0; i < 64; ++i)
    many.emplace_back(root_.string(), "worker-0");
  EXPECT_EQ(many.back().arguments(), std::vector<std::string>{"--no-cache"});
  EXPECT_EQ(CacheFolder(root_.string(), "worker-1").path(), (root_ / "worker-1").string());
}

// If nothing can be locked or made, there is no lock: the worker reports what is wrong with the folder.
TEST_F(Removal, OfALockThatIsNoFileIsNotNeeded) {
  fs::create_directory(root_ / "worker-0%lock");
  EXPECT_EQ(CacheFolder(root_.string(), "worker-0").path(), folder_.string());
  fs::create_directory(root_ / "pipes");
  ASSERT_EQ(::mkfifo((root_ / "pipes" / "worker-0%lock").c_str(), 0600), 0);
  EXPECT_EQ(CacheFolder((root_ / "pipes").string(), "worker-0").path(),
            (root_ / "pipes" / "worker-0").string());
}

TEST_F(Removal, OfAWorkersFolderIsItsOwnAndOnlyOnDemand) {
  CacheFolder cache(root_.string(), "worker-0");
  EXPECT_EQ(cache.arguments(), (std::vector<std::string>{"--cache", folder_.string()}));
  EXPECT_TRUE(fs::exists(folder_));
  fs::create_directory(root_ / "worker-1");
  cache.drop("a test");
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_TRUE(fs::exists(root_ / "worker-1"));
  cache.drop("a test");  // there is no folder
  EXPECT_EQ(cache.path(), folder_.string());
  EXPECT_EQ(CacheFolder("", "worker-0").arguments(), std::vector<std::string>{"--no-cache"});
}

}  // namespace
}  // namespace bulkhead::orchestrator
