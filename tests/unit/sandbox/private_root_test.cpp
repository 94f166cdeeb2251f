// A process in a root of its own: what it finds there, where paths lead, and what stays when the kernel refuses. Each
// test enters its root in a child, once with the test's privileges and once without any.
#include "worker/sandbox/private_root.hpp"

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "config/base/unique_fd.hpp"
#include "tests/unit/sandbox/in_child.hpp"
#include "worker/sandbox/files.hpp"
#include "worker/sandbox/namespaces.hpp"

namespace bulkhead::worker {
namespace {

namespace fs = std::filesystem;

int error_of_stat(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? 0 : errno;
}

int error_of_open(const fs::path& path, int flags) {
  return UniqueFd(::open(path.c_str(), flags | O_CLOEXEC, 0600)).valid() ? 0 : errno;
}

// A model behind a link, as caches of downloads have it, a cache folder, and a secret beside each.
class PrivateRoot : public testing::TestWithParam<As> {
 protected:
  PrivateRoot() {
    std::string pattern = (fs::temp_directory_path() / "bulkhead-root-XXXXXX").string();
    folder_ = fs::canonical(::mkdtemp(pattern.data()));
    for (const char* each : {"blobs", "models", "cache", "work", "shut/deep"})
      fs::create_directories(folder_ / each);
    for (const char* each : {"blobs/model", "blobs/secret", "secret", "shut/deep/model"})
      std::ofstream(folder_ / each) << "weights";
    fs::create_symlink("../blobs/model", folder_ / "models" / "model.gguf");
    fs::create_symlink(folder_ / "models", folder_ / "current");
    if (::geteuid() == 0 && GetParam() == As::kNobody) {
      (void)!::chown(folder_.c_str(), kNobodysId, kNobodysId);
      for (const auto& each : fs::recursive_directory_iterator(folder_))
        (void)!::lchown(each.path().c_str(), kNobodysId, kNobodysId);
    }
    allowed_.readable = {"/usr", "/lib", "/lib64", (folder_ / "current/model.gguf").string()};
    allowed_.writable = {(folder_ / "cache").string()};
  }
  ~PrivateRoot() override {
    std::error_code ignored;
    fs::permissions(folder_ / "shut", fs::perms::owner_all, ignored);
    fs::remove_all(folder_, ignored);
  }

  void SetUp() override {
    const std::string gap = in_child([this] {
      become(GetParam());
      return namespace_support(allowed_).root_gap;
    });
    if (!gap.empty())
      GTEST_SKIP() << "the kernel refuses a private root here (" << gap
                   << "); run the test where user namespaces are allowed, or as root with "
                      "CAP_SYS_ADMIN";
  }

  // Calls `run` in a child that has entered its root; `run` returns what is wrong.
  void expect_inside(const std::function<std::string()>& run) {
    EXPECT_EQ(in_child([&]() -> std::string {
                become(GetParam());
                if (::chdir((folder_ / "work").c_str()) != 0) return "no working folder";
                const Result<Namespaces> entered = enter_namespaces(proc_paths(), allowed_);
                if (!entered.ok()) return entered.error().message();
                if (!entered->root) return entered->root_gap;
                return run();
              }),
              "");
  }

  fs::path folder_;
  SandboxPaths allowed_;
};

TEST_P(PrivateRoot, HoldsWhatIsAllowedAndNothingElse) {
  expect_inside([this] {
    std::string wrong;
    for (const fs::path& path :
         {folder_ / "secret", folder_ / "blobs/secret", folder_ / "models/secret",
          folder_ / "current/secret", fs::path("/etc/passwd"), fs::path("/var"),
          fs::path("/dev/shm"), fs::path("/usr/../etc/passwd"), fs::path("../secret"),
          fs::path("/proc/self/root" + (folder_ / "secret").string()),
          fs::path("/proc/self/cwd/../secret")})
      wrong += unless(error_of_stat(path) == ENOENT, path.c_str());
    for (const fs::path& path :
         {folder_ / "models/model.gguf", folder_ / "current/model.gguf", folder_ / "blobs/model",
          fs::path("../current/model.gguf"), folder_ / "cache", fs::path("/usr/bin"),
          fs::path("/lib"), fs::path("/proc/self/maps")})
      wrong += unless(error_of_open(path, O_RDONLY) == 0, path.c_str());
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator("/"))
      names.insert(entry.path().filename());
    std::set<std::string> expected = {"dev", "proc", "usr", *std::next(folder_.begin())};
    for (const char* each : {"lib", "lib64"}) {
      if (names.contains(each)) expected.insert(each);
    }
    return wrong + unless(names == expected, "other names in /") +
           unless(fs::file_size(folder_ / "current/model.gguf") == 7, "the model's size") +
           unless(fs::read_symlink(folder_ / "models/model.gguf") == "../blobs/model", "a link") +
           unless(fs::current_path() == folder_ / "work", "the working folder");
  });
  EXPECT_TRUE(fs::exists(folder_ / "secret")) << "and nobody else has lost anything";
}

TEST_P(PrivateRoot, IsReadOnlyButForWhatMayBeWritten) {
  expect_inside([this] {
    const fs::path cache = folder_ / "cache";
    const auto refused = [](const fs::path& path) {
      return error_of_open(path, O_WRONLY | O_CREAT) == EROFS;
    };
    const bool writes = error_of_open(cache / "new", O_WRONLY | O_CREAT) == 0 &&
                        ::mkdir((cache / "sub").c_str(), 0700) == 0 &&
                        ::rename((cache / "new").c_str(), (cache / "sub/kept").c_str()) == 0;
    return unless(writes, "the cache folder") + unless(refused("/new"), "a file in /") +
           unless(refused("new"), "a file beside") +
           unless(refused(folder_ / "blobs/model"), "the model") +
           unless(refused("/usr/bulkhead-new"), "a file in /usr") +
           unless(error_of_open("/dev/null", O_RDWR) == 0, "/dev/null") +
           unless(error_of_open("/dev/urandom", O_RDONLY) == 0, "/dev/urandom");
  });
  EXPECT_TRUE(fs::exists(folder_ / "cache/sub/kept"));
}

// A writable folder in a readable one, a file in a readable folder, the same path twice.
TEST_P(PrivateRoot, TakesPathsThatLieInEachOther) {
  allowed_.readable.push_back(folder_.string());
  allowed_.readable.push_back((folder_ / "cache").string());
  expect_inside([this] {
    return unless(error_of_open(folder_ / "cache/new", O_WRONLY | O_CREAT) == 0, "the cache") +
           unless(error_of_open(folder_ / "secret", O_RDONLY) == 0, "it is allowed now") +
           unless(error_of_open(folder_ / "secret", O_WRONLY) == EROFS, "it can be written") +
           unless(fs::current_path() == folder_ / "work", "the working folder");
  });
}

// This keeps the worker's message about a model file true.
TEST_P(PrivateRoot, LeavesTheReasonWhyAPathFails) {
  if (GetParam() == As::kSelf && ::geteuid() == 0) return;  // it may search every folder
  fs::permissions(folder_ / "shut", fs::perms::none);
  fs::create_symlink("round", folder_ / "round");
  for (const char* each : {"shut/deep/model", "round", "nothing", "blobs/model/below"})
    allowed_.readable.push_back((folder_ / each).string());
  expect_inside([this] {
    return unless(error_of_stat(folder_ / "shut/deep/model") == EACCES, "a folder that is shut") +
           unless(error_of_stat(folder_ / "round") == ELOOP, "a link to itself") +
           unless(error_of_stat(folder_ / "nothing") == ENOENT, "a missing file") +
           unless(error_of_stat(folder_ / "blobs/model/below") == ENOTDIR, "a file as a folder");
  });
}

TEST_P(PrivateRoot, TakesRelativePaths) {
  allowed_.readable = {"../models/model.gguf"};
  allowed_.writable = {};
  expect_inside([this] {
    return unless(error_of_open("../models/model.gguf", O_RDONLY) == 0, "the model") +
           unless(error_of_stat("../secret") == ENOENT, "a file beside it");
  });
}

// What another process puts in an allowed file's place is seen by the next process, not by this one.
TEST_P(PrivateRoot, KeepsTheFilesThatWereThere) {
  const fs::path model = folder_ / "blobs/model";
  expect_inside([&] { return unless(fs::file_size(model) == 7, "the file"); });
  std::ofstream(folder_ / "blobs/new") << "other weights";
  fs::rename(folder_ / "blobs/new", model);
  expect_inside([&] { return unless(fs::file_size(model) == 13, "the file in its place"); });
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutPrivileges, PrivateRoot,
                         testing::Values(As::kSelf, As::kNobody),
                         [](const auto& as) { return as.param == As::kSelf ? "Self" : "Nobody"; });

// ---- where it can't be had ----

// The process continues in its namespaces as if there were no private roots.
TEST_P(PrivateRoot, ThatIsRefusedChangesNothing) {
  for (const int call : {SCMP_SYS(pivot_root), SCMP_SYS(umount2), SCMP_SYS(mount_setattr)}) {
    const std::unique_ptr<char, decltype(&std::free)> resolved(
        ::seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, call), &std::free);
    const std::string name = resolved.get();
    EXPECT_EQ(in_child([&]() -> std::string {
                become(GetParam());
                if (::chdir((folder_ / "work").c_str()) != 0) return "no working folder";
                if (!refuse(call)) return "no filter";
                const Result<Namespaces> entered = enter_namespaces(proc_paths(), allowed_);
                if (!entered.ok()) return entered.error().message();
                return unless(!entered->root, "it says that it has one") +
                       unless(entered->root_gap.starts_with(name), entered->root_gap.c_str()) +
                       unless(entered->mounts && entered->gap.empty(), "a namespace is missing") +
                       unless(error_of_stat(folder_ / "secret") == 0, "a file is gone") +
                       unless(error_of_stat("../secret") == 0, "the working folder") +
                       unless(error_of_open("/proc/self/maps", O_RDONLY) == 0, "/proc/self") +
                       unless(error_of_stat("/proc/" + std::to_string(::getppid())) == ENOENT,
                              "/proc shows others");
              }),
              "")
        << name;
  }
}

TEST_P(PrivateRoot, IsNotMadeWhereAllFoldersAreAllowed) {
  allowed_.readable.push_back("/usr/..");
  EXPECT_EQ(in_child([this]() -> std::string {
              become(GetParam());
              const Result<Namespaces> entered = enter_namespaces(proc_paths(), allowed_);
              if (!entered.ok()) return entered.error().message();
              return entered->root_gap +
                     unless(error_of_stat("/etc/passwd") == 0, "a file is gone");
            }),
            "the sandbox allows all folders: /usr/.. is /");
}

}  // namespace
}  // namespace bulkhead::worker
