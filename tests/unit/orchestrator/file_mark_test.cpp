#include "orchestrator/supervisor/file_mark.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orchestrator/router/router.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::orchestrator {
namespace {

class FileMark : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::trunc) << text;
    return path;
  }
  const test::TemporaryFolder temporary_{"mark"};
  const std::filesystem::path& folder_ = temporary_.path();
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

// A chat template makes a chat's prompt. With another template, a stream could not continue its own
// prompt.
TEST_F(FileMark, OfTheChatTemplateCountsToo) {
  config::Settings settings;
  config::ModelSettings& model = settings.models.emplace_back();
  model.path = write("model.gguf", "weights");
  EXPECT_EQ(mark_of(model), file_mark_of(model.path));
  std::set<std::string> marks = {mark_of(model)};
  for (const char* name : {"tool_use", "rag"}) {
    model.chat_template = name;
    EXPECT_TRUE(marks.insert(mark_of(model)).second) << name;
  }
  for (const char* text : {"{{ a }}", "{{ bc }}"}) {
    model.chat_template = write("chat.jinja", text);
    EXPECT_TRUE(marks.insert(mark_of(model)).second) << text;
    EXPECT_EQ(mark_of(model), mark_of(model));
  }
  for (const std::string& mark : marks)
    EXPECT_EQ(std::strtoull(mark.c_str(), nullptr, 10), 7U) << mark << " begins with the bytes";
  std::filesystem::remove(model.path);
  EXPECT_EQ(mark_of(model), "-");
}

TEST_F(FileMark, AReloadLooksForTheChatTemplateToo) {
  config::Settings settings;
  config::ModelSettings& model = settings.models.emplace_back();
  model.path = write("model.gguf", "weights");
  model.chat_template = "tool_use";
  EXPECT_EQ(look_at_models(settings).begin()->second.problem, "");
  model.chat_template = write("chat.jinja", "{{ a }}");
  EXPECT_EQ(look_at_models(settings).begin()->second.problem, "");
  EXPECT_EQ(look_at_models(settings).begin()->second.mark, mark_of(model));
  std::filesystem::remove(model.chat_template);
  EXPECT_THAT(look_at_models(settings).begin()->second.problem, testing::HasSubstr("chat.jinja"));
}

// No token depends on a draft model, so a stream may continue with another one.
TEST_F(FileMark, ADraftModelHasAMarkOfItsOwn) {
  config::Settings settings;
  config::ModelSettings& model = settings.models.emplace_back();
  model.path = write("model.gguf", "weights");
  const std::string before = mark_of(model);
  EXPECT_EQ(draft_mark_of(model), "");
  model.draft = write("draft.gguf", "fewer");
  EXPECT_EQ(mark_of(model), before);
  EXPECT_EQ(draft_mark_of(model), file_mark_of(model.draft));
  EXPECT_EQ(look_at_models(settings).begin()->second.draft_mark, draft_mark_of(model));
  EXPECT_EQ(look_at_models(settings).begin()->second.problem, "");
  std::filesystem::remove(model.draft);
  EXPECT_THAT(look_at_models(settings).begin()->second.problem, testing::HasSubstr("draft.gguf"));
}

TEST_F(FileMark, WhatIsNoFileHasNone) {
  EXPECT_EQ(file_mark_of("builtin"), "-");
  EXPECT_EQ(file_mark_of((folder_ / "gone.gguf").string()), "-");
}

TEST_F(FileMark, FilesOfTheSameContentAreOneModelWhereAnIdNamesTheContent) {
  constexpr char kNames[] =
      "llvmpipe/5.abc/rows/weights-0123456789abcdef/file-00112233445566ff/kv-f16";
  const std::string one = file_mark_of(write("a.gguf", "weights")),
                    copy = file_mark_of(write("b.gguf", "weights")),
                    longer = file_mark_of(write("c.gguf", "weights!"));
  ASSERT_NE(one, copy);
  EXPECT_EQ(content_mark(one, kNames), content_mark(copy, kNames));
  EXPECT_NE(content_mark(one, kNames), content_mark(longer, kNames));
  EXPECT_NE(content_mark(one + "+01", kNames), content_mark(copy + "+02", kNames));
  EXPECT_NE(content_mark(one + "+01", kNames), content_mark(copy, kNames));
  EXPECT_EQ(content_mark("-", kNames), "-");
  for (const char* silent : {"", "fake", "a/weights-0123456789abcdef/kv-f16",
                             "a/weights-0123456789abcdef/file-0123456789abcde/kv-f16",
                             "a/weights-0123456789abcdeX/file-0123456789abcdef/kv-f16",
                             "a/weights-0123456789abcdef/file-0123456789abcdef/kv-/kv-f16"})
    EXPECT_NE(content_mark(one, silent), content_mark(copy, silent)) << silent;
}

}  // namespace
}  // namespace bulkhead::orchestrator
