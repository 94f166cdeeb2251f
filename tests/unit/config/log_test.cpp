#include "config/base/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace bulkhead {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

TEST(Log, TextLineNamesTimeProgramAndLevel) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(log::init("info", "text", "tester").ok());
  spdlog::warn("the {} is full", "ring");
  spdlog::debug("not shown");
  const std::string text = testing::internal::GetCapturedStderr();

  EXPECT_THAT(text, HasSubstr("tester["));
  EXPECT_THAT(text, EndsWith("] warn: the ring is full\n"));
  EXPECT_THAT(text, Not(HasSubstr("not shown")));
}

TEST(Log, AMessageCanNotForgeALine) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(log::init("info", "text", "tester").ok());
  spdlog::info("worker said: a\n2026 fake\x1b[31m");
  const std::string text = testing::internal::GetCapturedStderr();

  EXPECT_THAT(text, EndsWith("worker said: a\\n2026 fake\\x1b[31m\n"));
}

TEST(Log, JsonLinesParse) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(log::init("debug", "json", "tester").ok());
  spdlog::error("a \"quoted\" \\ path\n\x01 end");
  const std::string text = testing::internal::GetCapturedStderr();

  const auto line = nlohmann::json::parse(text);
  EXPECT_EQ(line["level"], "error");
  EXPECT_EQ(line["program"], "tester");
  EXPECT_EQ(line["message"], "a \"quoted\" \\ path\n\x01 end");
  EXPECT_TRUE(line["pid"].is_number());
}

TEST(Log, UnknownLevelAndFormatAreRefused) {
  EXPECT_THAT(log::init("loud", "text", "tester").error().message(), HasSubstr("'loud'"));
  EXPECT_THAT(log::init("info", "xml", "tester").error().message(), HasSubstr("'xml'"));
}

}  // namespace
}  // namespace bulkhead
