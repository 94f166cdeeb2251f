#include "config/base/program_options.hpp"

#include <gmock/gmock.h>

namespace bulkhead {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CommandLine : public testing::Test {
 protected:
  CommandLine() : options_("A program for tests", "program") {
    options_.add("--set", set_, "a setting, key=value").repeated();
    options_.add("--streams", streams_, "numbers").comma_separated().within(1, 256);
    options_.add("--model", model_, "a file").not_empty();
  }

  Result<bool> read(std::vector<std::string> words) {
    words.insert(words.begin(), "program");
    std::vector<char*> arguments;
    for (std::string& word : words)
      arguments.push_back(word.data());
    return options_.read(static_cast<int>(arguments.size()), arguments.data());
  }

  ProgramOptions options_;
  std::vector<std::string> set_;
  std::vector<std::uint32_t> streams_{1};
  std::string model_;
};

// `--model "$MODEL"` where MODEL is not set.
TEST_F(CommandLine, AnEmptyValueIsNoAbsentOne) {
  const Result<bool> read_it = read({"--model", ""});
  ASSERT_FALSE(read_it.ok());
  EXPECT_THAT(read_it.error().message(), HasSubstr("--model: its value is empty"));
  EXPECT_TRUE(read({"--model", "a.gguf"}).ok());
}

TEST_F(CommandLine, ARepeatedOptionTakesOneValueEachTime) {
  const Result<bool> read_it = read({"--set", "a=1", "--streams", "1,4", "--set", "b=2"});
  ASSERT_TRUE(read_it.ok()) << read_it.error().message();
  EXPECT_THAT(set_, ElementsAre("a=1", "b=2"));
  EXPECT_THAT(streams_, ElementsAre(1, 4));
}

// In "--set a=1 model.gguf" the user forgot "--model"; the error must not be about the setting.
TEST_F(CommandLine, WhatNoOptionTakesIsNamed) {
  const Result<bool> read_it = read({"--set", "a=1", "model.gguf"});
  ASSERT_FALSE(read_it.ok());
  EXPECT_THAT(read_it.error().message(), HasSubstr("model.gguf"));
  EXPECT_THAT(read_it.error().message(), HasSubstr("not expected"));
}

TEST_F(CommandLine, NumbersOutOfRangeAreRefused) {
  const Result<bool> read_it = read({"--streams", "1,257"});
  ASSERT_FALSE(read_it.ok());
  EXPECT_THAT(read_it.error().message(), HasSubstr("257"));
}

}  // namespace
}  // namespace bulkhead
