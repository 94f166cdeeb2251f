#include "config/base/log.hpp"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "config/base/log_event.hpp"

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

TEST(Log, FieldsAreWordsInTextAndMembersInJson) {
  using log::Field;
  const std::array fields = {Field::word("id", "a-1"), Field::quoted("model", "m\"\n"),
                             Field::number("status", 200), Field::flag("stream", true),
                             Field::milliseconds("total_ms", 1.25)};
  testing::internal::CaptureStderr();
  ASSERT_TRUE(log::init("info", "text", "tester").ok());
  log::event("request", fields);
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      EndsWith("] info: request id=a-1 model=\"m\"\\n\" status=200 stream=true total_ms=1.2\n"));

  testing::internal::CaptureStderr();
  ASSERT_TRUE(log::init("info", "json", "tester").ok());
  log::event("request", fields);
  const auto line = nlohmann::json::parse(testing::internal::GetCapturedStderr());
  EXPECT_EQ(line["message"], "request");
  EXPECT_EQ(line["level"], "info");
  EXPECT_EQ(line["id"], "a-1");
  EXPECT_EQ(line["model"], "m\"\n");
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["stream"], true);
  EXPECT_EQ(line["total_ms"], 1.2);

  testing::internal::CaptureStderr();
  ASSERT_TRUE(log::init("warn", "json", "tester").ok());
  log::event("request", fields);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Log, UnknownLevelAndFormatAreRefused) {
  EXPECT_THAT(log::init("loud", "text", "tester").error().message(), HasSubstr("'loud'"));
  EXPECT_THAT(log::init("info", "xml", "tester").error().message(), HasSubstr("'xml'"));
}

}  // namespace
}  // namespace bulkhead
