#include "worker/model/template_file.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"

namespace bulkhead::model {
namespace {

using ::testing::HasSubstr;

class TemplateFile : public ::testing::Test {
 protected:
  TemplateFile() {
    testing::GgufBuilder builder = testing::small_llama();
    builder.text("tokenizer.chat_template", "own");
    builder.text("tokenizer.chat_template.tool_use", "{{ messages[0].content }} with tools");
    builder.text("tokenizer.chat_template.broken", "{% if %}");
    bytes_ = builder.bytes();
    file_ = *testing::open_bytes(bytes_);
  }
  ~TemplateFile() override { std::filesystem::remove(path_); }
  std::string write(const std::string& text) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
    return path_;
  }

  const std::string path_ =
      ::testing::TempDir() + "template_" + std::to_string(::getpid()) + ".jinja";
  std::string bytes_;  // the file is read from these bytes
  std::unique_ptr<GgufFile> file_;
};

TEST_F(TemplateFile, TakesThePlaceOfTheModelsOwn) {
  const auto named = load_asked_chat(*file_, "tool_use");
  ASSERT_TRUE(named.ok()) << named.error().message();
  EXPECT_EQ(named->source(), "{{ messages[0].content }} with tools");
  const std::string longest = "{{ messages }}" + std::string((256U << 10) - 14, 'x');
  for (const std::string& text : {std::string("{{ messages }}"), longest}) {
    const auto read = load_asked_chat(*file_, write(text));
    ASSERT_TRUE(read.ok()) << read.error().message();
    EXPECT_EQ(read->source(), text);
  }
}

TEST_F(TemplateFile, ThatIsNoneIsRefusedByName) {
  const auto refused = [this](const std::string& asked, ErrorCode code, const std::string& why) {
    const auto chat = load_asked_chat(*file_, asked);
    ASSERT_FALSE(chat.ok()) << asked;
    EXPECT_EQ(chat.error().code(), code) << chat.error().message();
    EXPECT_THAT(chat.error().message(), HasSubstr("chat_template"));
    EXPECT_THAT(chat.error().message(), HasSubstr(asked));
    EXPECT_THAT(chat.error().message(), HasSubstr(why));
  };
  refused("rag", ErrorCode::kNotFound, "no template of the name");
  refused(path_, ErrorCode::kNotFound, "can't be read: No such file or directory");
  refused(::testing::TempDir(), ErrorCode::kNotFound, "can't be read: Is a directory");
  refused(write(""), ErrorCode::kInvalidArgument, "is empty");
  refused(write(std::string((256U << 10) + 1, 'x')), ErrorCode::kInvalidArgument,
          "more than 256 KiB");
  refused(write("{% if %}"), ErrorCode::kInvalidArgument, "");
  refused("broken", ErrorCode::kInvalidArgument, "");
}

}  // namespace
}  // namespace bulkhead::model
