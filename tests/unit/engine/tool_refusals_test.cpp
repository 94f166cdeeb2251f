// Tools that a request may not call, tools that the engine refuses, and warnings of what it can't hold calls to.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/engine/tool_harness.hpp"
#include "worker/model/answer/family.hpp"

namespace bulkhead::test {
namespace {

using ipc::ToolChoice;
using ::testing::HasSubstr;

// The template shows the model all tools. Text that looks like a call of a tool that is not allowed stays text.
TEST(ToolChoice, OnlyAllowedToolsAreCalled) {
  for (std::uint64_t id = 0; id < 6; ++id) {
    ipc::Submit request = asks(id, ToolChoice::kRequired);
    request.allowed_tools = {"get_time"};
    const Answer answer = alone(request);
    ASSERT_TRUE(answer.finished) << answer.failed->message;
    for (const Call& call : calls_of(answer))
      EXPECT_EQ(call.name, "get_time");
  }
  ToolHarness harness;
  harness.says(R"(<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>)", 2);
  ipc::Submit request = asks(1, ToolChoice::kAuto);
  request.allowed_tools = {"get_time"};
  harness.engine.submit(request);
  harness.run();
  ASSERT_TRUE(harness.answer(1).finished);
  for (const Call& call : calls_of(harness.answer(1)))
    EXPECT_EQ(call.name, "get_time");
}

// The daemon refuses such tools. If a worker gets them nevertheless, it refuses the request.
TEST(ToolChoice, AllowedToolsBesideToolsWithoutNamesAreRefused) {
  for (const char* broken :
       {"7", "\"get_time\"", "null", "[]", R"({"type":"function"})",
        R"({"type":"function","function":7})", R"({"type":"function","function":{"name":7}})",
        R"({"type":"function","function":{"name":null}})", R"({"name":["get_time"]})"}) {
    SCOPED_TRACE(broken);
    const std::string both = R"("tools":[{"type":"function","function":{"name":"get_time"}},)";
    ipc::Submit request = asks(1, ToolChoice::kAuto, both + broken + "]");
    request.allowed_tools = {"get_time"};
    const Answer refused = alone(request);
    ASSERT_TRUE(refused.failed);
    EXPECT_EQ(refused.failed->code, ipc::FailureCode::kInvalidRequest);
    EXPECT_EQ(refused.failed->parameter, "tools");
    EXPECT_THAT(refused.failed->message, HasSubstr("tools[1]"));
  }
}

TEST(ToolChoice, WhatCannotBeHeldIsRefusedOrWarnedOf) {
  const auto unique = [](const char* strict) {
    return R"("tools":[{"type":"function","function":{"name":"f","strict":)" + std::string(strict) +
           R"(,"parameters":{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}}}])";
  };
  const Answer refused = alone(asks(1, ToolChoice::kAuto, unique("true")));
  ASSERT_TRUE(refused.failed);
  EXPECT_EQ(refused.failed->code, ipc::FailureCode::kUnsupported);
  EXPECT_EQ(refused.failed->parameter, "tools");
  EXPECT_THAT(refused.failed->message, HasSubstr("uniqueItems"));
  const Answer warned = alone(asks(1, ToolChoice::kAuto, unique("false")));
  ASSERT_TRUE(warned.accepted);
  // The template shows no tools, which is the other warning.
  ASSERT_EQ(warned.accepted->warnings.size(), 2U);
  EXPECT_THAT(warned.accepted->warnings[1], HasSubstr("uniqueItems"));
  ToolHarness harness;
  harness.language.family = &model::answer::plain_family();  // this family writes no calls
  harness.engine.submit(asks(1, ToolChoice::kRequired));
  harness.engine.submit(asks(2, ToolChoice::kAuto));
  harness.run();
  ASSERT_TRUE(harness.answer(1).failed);
  EXPECT_EQ(harness.answer(1).failed->parameter, "tool_choice");
  EXPECT_TRUE(harness.answer(2).finished);
}

TEST(ToolChoice, IntegersThatWouldBeRoundedAreRefusedOrWarnedOf) {
  const auto large = [](const char* strict) {
    return R"("tools":[{"type":"function","function":{"name":"f","strict":)" + std::string(strict) +
           R"(,"parameters":{"type":"object","properties":{"a":{"const":12345678901234567890123}}}}}])";
  };
  const Answer refused = alone(asks(1, ToolChoice::kAuto, large("true")));
  ASSERT_TRUE(refused.failed);
  EXPECT_EQ(refused.failed->code, ipc::FailureCode::kUnsupported);
  EXPECT_THAT(refused.failed->message,
              HasSubstr("\"const\" at #/properties/a: 12345678901234567890123"));
  const Answer warned = alone(asks(1, ToolChoice::kAuto, large("false")));
  ASSERT_TRUE(warned.accepted);
  ASSERT_EQ(warned.accepted->warnings.size(), 2U);
  EXPECT_THAT(warned.accepted->warnings[1],
              HasSubstr("\"const\" at #/properties/a: 12345678901234567890123"));
}

// Warnings go through a channel and into a head, which have limits.
TEST(ToolChoice, WarningsAreFewAndShort) {
  std::string many = R"("tools":[)";
  for (int i = 0; i < 40; ++i)
    many +=
        std::string(i == 0 ? "" : ",") + R"({"type":"function","function":{"name":")" +
        std::string(200, 'x') + "\xC3\xA9" + std::to_string(i) +
        R"(","parameters":{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}}})";
  const Answer answer = alone(asks(1, ToolChoice::kAuto, many + "]"));
  ASSERT_TRUE(answer.accepted);
  EXPECT_LE(answer.accepted->warnings.size(), 16U);
  EXPECT_THAT(answer.accepted->warnings.back(), HasSubstr("33 more"));
  for (const std::string& each : answer.accepted->warnings)
    EXPECT_LE(each.size(), 256U);
}

}  // namespace
}  // namespace bulkhead::test
