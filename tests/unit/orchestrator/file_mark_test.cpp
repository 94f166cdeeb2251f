#include "orchestrator/supervisor/file_mark.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

class FileMark : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/bulkhead-mark-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::trunc) << text;
    return path;
  }
  std::filesystem::path folder_;
};

TEST_F(FileMark, OtherContentOfTheSameSizeAndTimeIsSeen) {
  const std::string path = write("model.gguf", "weights");
  const std::string before = file_mark_of(path);
  EXPECT_EQ(file_mark_of(path), before);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  write("model.gguf", "WEIGHTS");
  const timespec times[2] = {info.st_atim, info.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_NE(file_mark_of(path), before);
}

TEST_F(FileMark, EveryPartOfASplitModelCounts) {
  const std::string first = write("m-00001-of-00003.gguf", "one");
  write("m-00002-of-00003.gguf", "two");
  EXPECT_EQ(file_mark_of(first), "-") << "a part is missing";
  write("m-00003-of-00003.gguf", "three");
  const std::string before = file_mark_of(first);
  EXPECT_NE(before, "-");
  std::filesystem::remove(folder_ / "m-00002-of-00003.gguf");
  write("m-00002-of-00003.gguf", "two");
  EXPECT_NE(file_mark_of(first), before);
}

TEST_F(FileMark, WhatIsNoFileHasNone) {
  EXPECT_EQ(file_mark_of("builtin"), "-");
  EXPECT_EQ(file_mark_of((folder_ / "gone.gguf").string()), "-");
}

}  // namespace
}  // namespace bulkhead::orchestrator
