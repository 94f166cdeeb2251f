// A seal vouches for the files that lay in the folder before the first request, with their content
// at that time.
#include "orchestrator/supervisor/cache_seal.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <gmock/gmock.h>

#include "orchestrator/supervisor/cache_folder.hpp"

namespace bulkhead::orchestrator {
namespace {

namespace fs = std::filesystem;

class Seal : public testing::Test {
 protected:
  Seal() {
    for (const char* const file : {"pipelines.bin", "mesa/ab/kernel one", "mesa/cd/empty"})
      write(file, file == std::string("mesa/cd/empty") ? "" : file);
  }
  ~Seal() override { CacheFolder::remove_all(home_.string()); }

  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((folder() / file).parent_path());
    std::ofstream(folder() / file, std::ios::trunc) << text;
  }
  std::string read(const std::string& file) const {
    std::ifstream in(folder() / file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  fs::path folder() const { return home_ / "w0"; }
  bool there(const std::string& file) const { return fs::exists(folder() / file); }

  // Waits for the next tick of the clock that files' times come from, which moves only every few
  // milliseconds.
  static timespec now() {
    timespec then{}, now{};
    ::clock_gettime(CLOCK_REALTIME, &then);
    do {
      ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
    } while (std::pair(now.tv_sec, now.tv_nsec) <= std::pair(then.tv_sec, then.tv_nsec));
    return now;
  }
  void seal(std::uint64_t files = 3) const {
    const auto made = seal_.make(now());
    ASSERT_TRUE(made.ok()) << made.error().message();
    EXPECT_EQ(*made, files);
  }
  void expect_kept(std::uint64_t kept, std::uint64_t deleted) const {
    const CacheSeal::Check check = seal_.check();
    EXPECT_EQ(check.doubt, "");
    EXPECT_EQ(check.kept, kept);
    EXPECT_EQ(check.deleted, deleted);
  }

  static std::string make_home() {
    char name[] = "/tmp/bulkhead-seal-XXXXXX";
    return ::mkdtemp(name);
  }

  fs::path home_ = make_home();
  CacheSeal seal_{home_.string(), "w0"};
};

TEST_F(Seal, VouchesForWhatWasThere) {
  seal();
  expect_kept(3, 0);
  expect_kept(3, 0);
  EXPECT_EQ(read("mesa/ab/kernel one"), "mesa/ab/kernel one");
}

TEST_F(Seal, WithoutOneNothingIsKept) {
  expect_kept(0, 3);
  EXPECT_FALSE(there("pipelines.bin"));
  EXPECT_EQ(seal_.check().doubt, "");
}

TEST_F(Seal, DoesNotVouchForWhatChangedOrCameOrMoved) {
  seal();
  write("pipelines.bin", "pipelines.bim");
  write("mesa/new", "x");
  fs::rename(folder() / "mesa/ab/kernel one", folder() / "mesa/ab/kernel two");
  expect_kept(1, 3);
  EXPECT_TRUE(there("mesa/cd/empty"));
  EXPECT_FALSE(there("pipelines.bin") || there("mesa/new") || there("mesa/ab/kernel two"));
}

TEST_F(Seal, DoesNotVouchForWhatIsWrittenOnceARequestMayHaveCome) {
  const timespec ready = now();
  write("mesa/late", "x");
  // The bytes are the same, but the seal can't know who wrote them.
  write("pipelines.bin", "pipelines.bin");
  // A worker can set a file's times of access and modification, so the seal compares the time of the inode's change,
  // which no process can set.
  const timespec long_ago[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder() / "mesa/late").c_str(), long_ago, 0), 0);
  const auto made = seal_.make(ready);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(*made, 2U);
  expect_kept(2, 2);
}

TEST_F(Seal, MadeAgainVouchesForWhatItsFilesAreThen) {
  const auto text = [&] {
    std::ifstream in(home_ / "w0%seal");
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  seal();
  const std::string first = text();
  seal();
  EXPECT_EQ(text(), first);
  write("pipelines.bin", "pipelines.bim");
  seal();
  EXPECT_NE(text(), first);
  expect_kept(3, 0);
}

TEST_F(Seal, OfAnotherWorkerOrAnotherKeyIsNotBelieved) {
  seal();
  fs::create_directories(home_ / "w1");
  fs::copy(folder(), home_ / "w1", fs::copy_options::recursive);
  fs::copy_file(home_ / "w0%seal", home_ / "w1%seal");
  const CacheSeal::Check other = CacheSeal(home_.string(), "w1").check();
  EXPECT_EQ(other.kept, 0U);
  EXPECT_EQ(other.deleted, 3U);
  fs::remove(home_ / "%key");
  expect_kept(0, 3);
}

// Another user who may read the key or write the seal could have made any seal.
TEST_F(Seal, AndItsKeyAreTheUsersAlone) {
  const mode_t before = ::umask(0);
  seal();
  ::umask(before);
  for (const char* const name : {"%key", "w0%seal"}) {
    struct stat status {};
    ASSERT_EQ(::stat((home_ / name).c_str(), &status), 0) << name;
    EXPECT_EQ(status.st_mode & 07777, mode_t{0600}) << name;
  }
  ::chmod((home_ / "w0%seal").c_str(), 0620);
  expect_kept(0, 3);
  write("again", "x");
  seal(1);
  ::chmod((home_ / "%key").c_str(), 0644);
  expect_kept(0, 1);
  struct stat status {};
  ASSERT_EQ(::stat((home_ / "%key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, mode_t{0600}) << "it is another one";
}

TEST_F(Seal, AnOddFolderIsNotLookedThrough) {
  seal();
  ASSERT_EQ(::symlink("/etc/passwd", (folder() / "mesa/link").c_str()), 0);
  EXPECT_THAT(seal_.check().doubt, testing::HasSubstr("mesa/link: neither a file nor a folder"));
  fs::remove(folder() / "mesa/link");
  ASSERT_EQ(::mkfifo((folder() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(seal_.check().doubt, testing::HasSubstr("pipe"));
  fs::remove(folder() / "pipe");
  fs::create_directories(folder() / "1/2/3/4/5/6/7/8/9");
  EXPECT_THAT(seal_.check().doubt, testing::HasSubstr("too deep"));
  fs::remove_all(folder());
  fs::create_directory_symlink("/tmp", folder());
  EXPECT_NE(seal_.check().doubt, "");
}

// Leaves this process only this many descriptors while the object lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);  // the lowest number that is free
    ::close(next);
    const rlimit few{static_cast<rlim_t>(next) + count, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// Clients may take a daemon's last descriptors. That says nothing about the folder.
TEST_F(Seal, WithoutDescriptorsNothingIsDeleted) {
  seal();
  int short_of = 0;
  for (rlim_t count = 0; count < 10; ++count) {
    CacheSeal::Check check;
    {
      const FewDescriptors few(count);
      check = seal_.check();
    }
    short_of += check.ran_short ? 1 : 0;
    EXPECT_EQ(check.doubt, "") << count;
    EXPECT_EQ(check.deleted, 0U) << count;
    EXPECT_TRUE(check.ran_short || check.kept == 3) << count;
    expect_kept(3, 0);
  }
  EXPECT_GT(short_of, 3) << "each open fails once";
  EXPECT_LT(short_of, 10);
}

TEST_F(Seal, WithoutDescriptorsTheOldSealStays) {
  seal();
  int short_of = 0;
  for (rlim_t count = 0; count < 10; ++count) {
    write("new", std::to_string(count));
    const timespec ready = now();
    const auto made = [&] {
      const FewDescriptors few(count);
      return seal_.make(ready);
    }();
    if (made.ok()) {
      EXPECT_EQ(*made, 4U);
      expect_kept(4, 0);
    } else {
      ++short_of;
      EXPECT_EQ(made.error().code(), ErrorCode::kResourceExhausted) << made.error().message();
      expect_kept(3, 1);
    }
  }
  EXPECT_GT(short_of, 3);
  EXPECT_LT(short_of, 10);
}

TEST_F(Seal, WithoutDescriptorsTheFolderIsWithheldOnce) {
  CacheFolder folder(home_.string(), "w0");
  seal();
  const auto arguments = [&] {
    CacheFolder::Check check;
    for (int i = 0; i < 10'000 && !folder.passed(check); ++i)
      ::usleep(1000);
    return folder.arguments().front();
  };
  {
    const FewDescriptors few(0);
    EXPECT_EQ(arguments(), "--no-cache");
  }
  write("unknown", "x");
  folder.seal();  // this seals nothing, because the folder was not checked
  EXPECT_EQ(arguments(), "--cache");
  EXPECT_TRUE(there("pipelines.bin"));
  EXPECT_FALSE(there("unknown"));
}

// Reading a terabyte of holes would take minutes.
TEST_F(Seal, LargeFilesAreNotRead) {
  const auto enlarge = [&](const char* file) {
    ASSERT_EQ(::truncate((folder() / file).c_str(), off_t{1} << 40), 0);
  };
  write("large", "x");
  enlarge("large");
  seal(3);
  enlarge("pipelines.bin");
  expect_kept(2, 2);
  EXPECT_FALSE(there("large") || there("pipelines.bin"));
}

TEST_F(Seal, SaysHowMuchTheFolderTakes) {
  EXPECT_LT(seal_.size().bytes, 100'000U);
  for (int i = 0; i < 40; ++i)
    write("file" + std::to_string(i), std::string(50'000, 'x'));
  fs::create_symlink("/etc/passwd", folder() / "link");
  EXPECT_GT(seal_.size().bytes, 2'000'000U);
  EXPECT_EQ(seal_.size().doubt, "");
  // Files that lie too deep to be found can be of any size.
  fs::create_directories(folder() / "1/2/3/4/5/6/7/8/9");
  EXPECT_THAT(seal_.size().doubt, testing::HasSubstr("too deep"));
  fs::remove_all(folder());
  EXPECT_EQ(seal_.size().bytes, 0U);
  EXPECT_EQ(seal_.size().doubt, "");
}

// The test uses the folder and its seal as the supervisor does.
TEST_F(Seal, FolderIsGivenOnceNothingElseIsInIt) {
  CacheFolder folder(home_.string(), "w0");
  const auto wait = [&] {
    CacheFolder::Check check;
    bool passed = false;
    for (int i = 0; i < 10'000 && !(passed = folder.passed(check)); ++i)
      ::usleep(1000);
    EXPECT_TRUE(passed);
    EXPECT_FALSE(check.begun()) << "the next process needs another one";
    EXPECT_EQ(folder.arguments().front(), "--cache");
  };
  wait();
  EXPECT_FALSE(there("pipelines.bin")) << "nobody had sealed it";
  write("compiled", "x");
  now();
  folder.seal();
  wait();
  write("poison", "x");
  wait();
  EXPECT_TRUE(there("compiled"));
  EXPECT_FALSE(there("poison"));
  ASSERT_EQ(::symlink("/etc/passwd", (this->folder() / "link").c_str()), 0);
  wait();
  EXPECT_FALSE(fs::exists(this->folder())) << "all of it is in doubt";
}

// A check says nothing about later files, so a check that nobody waited for is of no use to the next process.
TEST_F(Seal, ChecksOfTwoProcessesAreTwo) {
  CacheFolder folder(home_.string(), "w0");
  const auto end = [&](CacheFolder::Check& check) {
    for (int i = 0; i < 10'000 && !folder.passed(check); ++i)
      ::usleep(1000);
  };
  CacheFolder::Check unused, used;
  folder.begin(unused);
  end(used);
  write("poison", "x");
  end(used);
  EXPECT_FALSE(there("poison"));
  write("poison", "x");
  EXPECT_TRUE(unused.begun());
  unused.forget();
  end(unused);
  EXPECT_FALSE(there("poison"));
}

// A large folder of one worker keeps no other worker waiting.
TEST_F(Seal, FoldersAreReadBesideEachOther) {
  fs::create_directories(home_ / "w1");
  write("../w1/large", "x");
  fs::resize_file(home_ / "w1/large",
                  std::uintmax_t{1} << 30);  // a hole, which takes half a second to read
  now();
  CacheFolder large(home_.string(), "w1"), small(home_.string(), "w0");
  CacheFolder::Check of_large, of_small;
  large.seal();
  large.begin(of_large);
  for (int i = 0; i < 10'000 && !small.passed(of_small); ++i)
    ::usleep(100);
  EXPECT_FALSE(of_small.begun());
  EXPECT_FALSE(large.passed(of_large));
}

TEST_F(Seal, FolderThatTakesTooMuchIsReported) {
  CacheFolder folder(home_.string(), "w0");
  const auto excess = [&](std::uint64_t most) {
    std::string words;
    for (int i = 0; i < 2'000 && words.empty(); ++i) {
      ::usleep(1000);
      words = folder.excess(most);
    }
    return words;
  };
  write("large", std::string(3 << 20, 'x'));
  EXPECT_EQ(excess(2 << 20), "more than 2 MiB (isolation.cache_mb)");
  folder.drop("a test");
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(folder.excess(2 << 20), "") << "the measured folder is gone";
    ::usleep(1000);
  }
}

// The worker may have got a user of its own, or lost it, since it wrote them.
TEST_F(Seal, WhatItVouchesForIsGivenToTheWorkersUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only the superuser can give files away";
  constexpr uid_t kWorker = 61000;
  ASSERT_EQ(::link((folder() / "pipelines.bin").c_str(), (home_ / "second name").c_str()), 0);
  seal();
  const auto owner = [&](const std::string& file) {
    struct stat status {};
    EXPECT_EQ(::lstat((folder() / file).c_str(), &status), 0) << file;
    return status.st_uid;
  };
  for (const uid_t user : {kWorker, kWorker, uid_t{0}}) {
    const CacheSeal::Check check =
        seal_.check(user == 0 ? std::nullopt : std::optional<std::uint32_t>(user));
    EXPECT_EQ(check.kept, 3U);
    for (const char* file : {"", "mesa", "mesa/ab", "mesa/ab/kernel one", "mesa/cd/empty"})
      EXPECT_EQ(owner(file), user) << file;
    EXPECT_EQ(owner("pipelines.bin"), 0U) << "it has a second name";
    seal();
  }
  // A third user's folder counts as anybody's.
  ASSERT_EQ(::chown(folder().c_str(), kWorker + 1, kWorker + 1), 0);
  CacheFolder cache(home_.string(), "w0");
  cache.set_owner(CacheFolder::Owner::kWorker);
  CacheFolder::Check check;
  while (!cache.passed(check)) {
  }
  EXPECT_FALSE(fs::exists(folder()));
}

}  // namespace
}  // namespace bulkhead::orchestrator
