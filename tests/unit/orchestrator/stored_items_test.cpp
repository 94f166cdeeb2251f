// Items of earlier responses, which a request of the Responses API may name by their ids.
#include "orchestrator/http/stored_items.hpp"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "orchestrator/http/body_reader.hpp"
#include "orchestrator/http/dialect.hpp"
#include "orchestrator/http/responses.hpp"
#include "tests/unit/orchestrator/parsed_requests.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;

// Answers a request with a thought, a text and a call; returns the items.
json answered(std::string_view request) {
  const std::unique_ptr<Dialect> dialect = responses_dialect(request);
  std::string events;
  AnswerHead head;
  head.id = dialect->new_id();
  dialect->begin(head, {}, events);
  const std::vector<ipc::AnswerPart> parts = {{ipc::PartKind::kReasoning, 0, "hm", ""},
                                              {ipc::PartKind::kContent, 0, "One \"moment\".", ""},
                                              {ipc::PartKind::kCall, 0, "f", "c1"},
                                              {ipc::PartKind::kArguments, 0, "{\"a\": 1}", ""}};
  dialect->add("", parts, events);
  dialect->end(ipc::FinishReason::kStop, "", {}, events);
  const json whole = json::parse(dialect->whole());
  EXPECT_EQ(whole["store"], request.find("\"store\":false") == request.npos);
  return whole["output"];
}

json conversation_of(const json& items) {
  json input = {{{"role", "user"}, {"content", "x"}}};
  input.insert(input.end(), items.begin(), items.end());
  input.push_back({{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "done"}});
  return {{"input", input}};
}

json references_to(const json& items) {
  json references = json::array();
  for (const json& item : items)
    references.push_back({{"type", "item_reference"}, {"id", item["id"]}});
  return references;
}

TEST(Responses, ItemsMayBeNamedByTheirIds) {
  const json items = answered(R"({"input":"x"})");
  ASSERT_EQ(items.size(), 3U);
  const json chat = chat_of(parse_responses(conversation_of(items).dump()));
  ASSERT_EQ(chat["messages"].size(), 3U);
  EXPECT_EQ(chat["messages"][1]["reasoning_content"], "hm");
  EXPECT_EQ(chat["messages"][1]["content"], "One \"moment\".");
  json references = references_to(items);
  EXPECT_EQ(chat_of(parse_responses(conversation_of(references).dump())), chat);
  references[1].erase("type");  // OpenAI's type of a reference may be left out
  EXPECT_EQ(chat_of(parse_responses(conversation_of(references).dump())), chat);
  references.push_back(references[0]);
  const auto twice = parse_responses(conversation_of(references).dump());
  ASSERT_NE(error_of(twice), nullptr);
  EXPECT_EQ(error_of(twice)->parameter, "input[4]");
}

TEST(Responses, NothingIsKeptOfARequestThatIsNotToBeStored) {
  const json items = answered(R"({"input":"x","store":false})");
  const auto named = parse_responses(conversation_of(references_to(items)).dump());
  ASSERT_NE(error_of(named), nullptr);
  EXPECT_EQ(error_of(named)->parameter, "input[1]");
}

TEST(Responses, NamedItemsHaveABoundTogether) {
  const json part = {{"type", "output_text"}, {"text", std::string(600'000, 'x')}};
  json named = json::array();
  for (const char* id : {"msg_large_1", "msg_large_2"}) {
    stored_items().keep(
        id, json{{"type", "message"}, {"role", "assistant"}, {"content", {part}}}.dump());
    named.push_back({{"type", "item_reference"}, {"id", id}});
  }
  const auto both = parse_responses(json{{"input", named}}.dump());
  ASSERT_NE(error_of(both), nullptr);
  EXPECT_EQ(error_of(both)->parameter, "input[1]");
  EXPECT_NE(error_of(both)->message.find("send the items themselves"), std::string::npos);
  named.erase(1);
  EXPECT_EQ(error_of(parse_responses(json{{"input", named}}.dump())), nullptr);
}

// The event loop parses short requests, and no more than as much of what they name.
TEST(Responses, LongItemsAreLeftToAThread) {
  const json part = {{"type", "output_text"}, {"text", std::string(6'000, 'x')}};
  json named = json::array();
  for (const char* id : {"msg_long_1", "msg_long_2", "msg_long_3"}) {
    stored_items().keep(
        id, json{{"type", "message"}, {"role", "assistant"}, {"content", {part}}}.dump());
    named.push_back({{"type", "item_reference"}, {"id", id}});
  }
  const std::string all = json{{"input", named}}.dump();
  EXPECT_EQ(error_of(parse_responses(all)), nullptr);
  {
    const ShortItems allowed(BodyReader::kLargeToTranslate);
    EXPECT_THROW(parse_responses(all), ItemsTooLong);
  }
  named.erase(2);
  const ShortItems allowed(BodyReader::kLargeToTranslate);
  EXPECT_EQ(error_of(parse_responses(json{{"input", named}}.dump())), nullptr);
}

TEST(StoredItems, TheOldestMakeRoomForOthers) {
  StoredItems items(100);
  items.keep("a", std::string(40, 'x'));
  items.keep("b", std::string(40, 'y'));
  items.keep("a", "another");  // an id is given once
  EXPECT_EQ(items.find("a"), std::string(40, 'x'));
  items.keep("huge", std::string(100, 'z'));
  EXPECT_EQ(items.find("huge"), std::nullopt);
  items.keep("c", std::string(30, 'z'));
  EXPECT_EQ(items.find("a"), std::nullopt);
  EXPECT_EQ(items.find("b"), std::string(40, 'y'));
  EXPECT_EQ(items.find("c"), std::string(30, 'z'));
}

TEST(Responses, AnItemThatIsNotThereIsRefusedWithTheWayOut) {
  const auto unknown = parse_responses(R"({"input":[{"type":"item_reference","id":"x"}]})");
  ASSERT_NE(error_of(unknown), nullptr);
  EXPECT_EQ(error_of(unknown)->parameter, "input[0]");
  EXPECT_THAT(error_of(unknown)->message, ::testing::HasSubstr("'store' false"));
}

}  // namespace
}  // namespace bulkhead::orchestrator
