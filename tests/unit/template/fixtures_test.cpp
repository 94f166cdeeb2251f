// Every chat template of the fixtures with every conversation: the exact text, or the refusal.
#include "tests/support/fixtures.hpp"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/sample.hpp"
#include "tests/unit/template/limits.hpp"
#include "tests/unit/template/render.hpp"
#include "worker/model/template/chat.hpp"

namespace bulkhead::jinja {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string file_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A JSON library would change a number past 64 bits, or one that is written as 1e+16. So requests are put together
// from the fixture's own text.
std::string member_text(const Json& object, const char* name) {
  return object.at(name).dump();
}

struct Fixture {
  std::string name;
  Json expected;
  std::string source;
};

std::vector<Fixture> all_fixtures() {
  std::vector<Fixture> all;
  const fs::path folder = test::fixtures() / "templates";
  if (!fs::exists(folder)) return all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    Fixture fixture;
    fixture.name = entry.path().stem();
    fixture.source = file_text(entry.path());
    fixture.expected = Json::parse(file_text(folder / (fixture.name + ".expected.json")));
    all.push_back(std::move(fixture));
  }
  return all;
}

std::string request_of(const Json& conversation, const Json* messages, const Json& one) {
  std::string json =
      "{\"messages\": " + (messages ? messages->dump() : member_text(conversation, "messages"));
  for (const char* name : {"tools", "add_generation_prompt"})
    if (conversation.contains(name))
      json += std::string(", \"") + name + "\": " + member_text(conversation, name);
  if (one.contains("context")) json += ", \"chat_template_kwargs\": " + member_text(one, "context");
  return json + "}";
}

void expect_result(const Result<ChatPrompt>& got, const Json& want) {
  if (want.contains("text")) {
    ASSERT_TRUE(got.ok()) << got.error().message();
    EXPECT_EQ(got.value().text(), want["text"].get<std::string>());
    return;
  }
  ASSERT_FALSE(got.ok()) << got.value().text();
  if (want.contains("raises")) {
    EXPECT_EQ(got.error().message(), want["raises"].get<std::string>());
    EXPECT_EQ(got.error().code(), kRaisedCode);
  }
}

class TemplateFixtures : public ::testing::Test {
 protected:
  void SetUp() override {
    if (fixtures_.empty())
      GTEST_SKIP() << "no template fixtures; set BULKHEAD_FIXTURES to their folder";
    const Json all = Json::parse(file_text(test::fixtures() / "templates" / "conversations.json"));
    for (const Json& each : all["conversations"])
      conversations_[each["name"].get<std::string>()] = each;
  }
  static Result<Chat> load(const Fixture& fixture) {
    return Chat::load(fixture.source, fixture.expected["bos_token"].get<std::string>(),
                      fixture.expected["eos_token"].get<std::string>());
  }

  const std::vector<Fixture> fixtures_ = all_fixtures();
  std::map<std::string, Json> conversations_;
};

TEST_F(TemplateFixtures, RenderAsTold) {
  const std::tm now = testing::at_noon().now;
  for (const Fixture& fixture : fixtures_) {
    const Result<Chat> chat = load(fixture);
    ASSERT_TRUE(chat.ok()) << fixture.name << ": " << chat.error().message();
    for (const Json& one : fixture.expected["cases"]) {
      SCOPED_TRACE(fixture.name + " " + one["name"].get<std::string>());
      const Json& conversation = conversations_.at(one["conversation"].get<std::string>());
      const std::string request = request_of(conversation, nullptr, one);
      expect_result(chat.value().render({request, now, false}), one["expected"]);
      expect_result(chat.value().render({request, now, true}),
                    one.contains("raw") ? one["raw"] : one["expected"]);
    }
  }
}

// A conversation of `count` messages: short turns, or calls of a tool.
std::string long_conversation(int count, bool calls) {
  std::string json = R"({"messages": [{"role": "user", "content": "go"})";
  for (int i = 1; i < count; ++i) {
    const std::string id = std::to_string(100'000'000 + i / 2);
    if (i % 2 == 0)
      json += calls ? R"(, {"role": "tool", "name": "f", "tool_call_id": ")" + id +
                          R"(", "content": "a result"})"
                    : R"(, {"role": "user", "content": "go on"})";
    else
      json +=
          calls
              ? R"(, {"role": "assistant", "content": "", "tool_calls": [{"id": ")" + id +
                    R"(", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"b\"}"}}]})"
              : R"(, {"role": "assistant", "content": "well"})";
  }
  return json + R"(], "tools": [{"type": "function", "function": {"name": "f", "description": "d",
      "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]})";
}

// A sanitizer build takes a sample of the templates, and fewer messages.
TEST_F(TemplateFixtures, RenderConversationsOfTwoThousandMessages) {
  const std::tm now = testing::at_noon().now;
  const int count = test::rounds(1'999) | 1;  // odd: the last message is not an answer
  const std::string turns = long_conversation(count, false), calls = long_conversation(count, true);
  for (std::size_t i = 0; i < fixtures_.size(); i += test::kStride) {
    const Result<Chat> chat = load(fixtures_[i]);
    ASSERT_TRUE(chat.ok());
    for (const std::string* request : {&turns, &calls}) {
      SCOPED_TRACE(fixtures_[i].name);
      const Result<ChatPrompt> prompt = chat.value().render({*request, now, false});
      if (request == &calls && fixtures_[i].name == "google-gemma-2-2b-it") {  // it knows no tools
        EXPECT_FALSE(prompt.ok());
        continue;
      }
      ASSERT_TRUE(prompt.ok()) << prompt.error().message();
      EXPECT_GT(prompt.value().text().size(),
                static_cast<std::size_t>(count) * std::string_view("well").size());
    }
  }
}

// Messages that other programs have adapted stay the same: a second adaptation changes nothing.
TEST_F(TemplateFixtures, AdaptedMessagesStayAsTheyAre) {
  const std::tm now = testing::at_noon().now;
  for (const Fixture& fixture : fixtures_) {
    const Result<Chat> chat = load(fixture);
    ASSERT_TRUE(chat.ok());
    for (const Json& one : fixture.expected["cases"]) {
      // The library reads 123456789012345678901 as a float, and would write another number.
      if (!one.contains("messages") || one["conversation"] == "awkward-arguments") continue;
      SCOPED_TRACE(fixture.name + " " + one["name"].get<std::string>());
      const Json& conversation = conversations_.at(one["conversation"].get<std::string>());
      const std::string request = request_of(conversation, &one["messages"], one);
      expect_result(chat.value().render({request, now, false}), one["expected"]);
    }
  }
}

TEST_F(TemplateFixtures, UserTextIsMarkedByteForByte) {
  const std::tm now = testing::at_noon().now;
  for (const Fixture& fixture : fixtures_) {
    const Result<Chat> chat = load(fixture);
    ASSERT_TRUE(chat.ok());
    for (const Json& one : fixture.expected["cases"]) {
      if (!one.contains("user_text_bytes")) continue;
      SCOPED_TRACE(fixture.name + " " + one["name"].get<std::string>());
      const Json& conversation = conversations_.at(one["conversation"].get<std::string>());
      const std::string request = request_of(conversation, nullptr, one);
      const Result<ChatPrompt> prompt = chat.value().render({request, now, false});
      ASSERT_TRUE(prompt.ok());
      const auto begin = one["user_text_bytes"][0].get<std::size_t>();
      const auto end = one["user_text_bytes"][1].get<std::size_t>();
      std::size_t at = 0;
      for (const Piece& piece : prompt.value().pieces) {
        const std::size_t next = at + piece.text.size();
        if (at < end && next > begin) {
          EXPECT_TRUE(piece.from_user) << "bytes " << at << " to " << next;
        }
        at = next;
      }
    }
  }
}

TEST_F(TemplateFixtures, ProbingFindsWhatEachTemplateNeeds) {
  for (const Fixture& fixture : fixtures_) {
    SCOPED_TRACE(fixture.name);
    const Result<Chat> chat = load(fixture);
    ASSERT_TRUE(chat.ok());
    std::vector<std::string> told =
        fixture.expected["normalisations"].get<std::vector<std::string>>();
    std::erase(told, "tools_undefined");  // this is done unless `absent_as_none` is
    std::vector<std::string> found = chat.value().abilities().adaptations.names();
    // The fixtures have no answer without content, no neighbours of one role, no incomplete calls and tools, no result
    // of several parts, no text beside both reasoning and a call, and arguments as JSON only.
    for (const char* name :
         {"null_answer_as_empty", "call_type_given", "later_system_as_user", "systems_joined",
          "neighbours_joined", "question_into_result", "tool_description_as_empty",
          "tool_parameters_as_empty", "tool_properties_as_empty", "result_parts_joined",
          "content_into_thinking", "arguments_as_text"})
      std::erase(found, name);
    // Two templates read only the first part of a system message. The fixture says what one part needs.
    if (chat.value().abilities().content_parts) std::erase(found, "system_parts_joined");
    EXPECT_EQ(found, told);
    const Json& supports = fixture.expected["supports"];
    const Abilities& can = chat.value().abilities();
    EXPECT_EQ(can.system_role, supports["system_role"].get<bool>());
    EXPECT_EQ(can.developer_role, supports["developer_role"].get<bool>());
    EXPECT_EQ(can.content_parts, supports["content_parts"].get<bool>());
    EXPECT_EQ(can.tools, supports["tools"].get<bool>());
    EXPECT_EQ(can.tool_calls, supports["tool_calls"].get<bool>());
    EXPECT_EQ(can.tool_results, supports["tool_results"].get<bool>());
    // The fixture speaks about a message with text beside the calls, but this message shows no calls at all.
    if (!can.adaptations.has(Adaptation::kEmptyContentAsNull)) {
      EXPECT_EQ(can.parallel_calls, supports["parallel_tool_calls"].get<bool>());
    }
    EXPECT_EQ(can.thinking_on, supports["enable_thinking"]["true_changes_prompt"].get<bool>());
    EXPECT_EQ(can.thinking_off, supports["enable_thinking"]["false_changes_prompt"].get<bool>());
  }
}

// Any change to a byte or a part of a template gives a text or an error, in time.
TEST_F(TemplateFixtures, MutatedTemplatesNeverCrash) {
  std::uint64_t state = 88172645463325252ULL;
  const auto random = [&state](std::size_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<std::size_t>(state % below);
  };
  const Json& conversation = conversations_.at("parallel-tool-calls");
  const std::string request = request_of(conversation, nullptr, {});
  const char* const kBits[] = {
      "{%",          "%}",    "{{", "}}",    "|", "(",  ")",
      "[",           "]",     "'",  "-",     "~", "in", "for x in messages",
      "{% endif %}", "loop.", "*",  "1e999", ":", "."};
  for (int i = 0; i < 1000; ++i) {
    std::string source = fixtures_[random(fixtures_.size())].source;
    for (std::size_t changes = 1 + random(4); changes > 0 && !source.empty(); --changes) {
      const std::size_t at = random(source.size());
      switch (random(4)) {
        case 0:
          source[at] = static_cast<char>(random(256));
          break;
        case 1:
          source.erase(at, random(40));
          break;
        case 2:
          source.insert(at, kBits[random(std::size(kBits))]);
          break;
        case 3:
          source.insert(at, source.substr(random(source.size()), random(200)));
          break;
      }
    }
    const testing::WithinLimits watched;
    const Result<Template> parsed = Template::parse(source);
    if (!parsed.ok()) continue;
    const auto result =
        parsed.value().render(testing::at_noon(), request.size(), [&](Interpreter& run) {
          const Value given = read_json(run, request, Origin::kUser);
          for (const Dict::Entry& entry : given.as_dict()->entries)
            run.define(entry.key.as_text()->view(), entry.value);
        });
    if (!result.ok()) continue;
    for (const Piece& piece : result.value())
      EXPECT_FALSE(piece.text.empty());
  }
}

}  // namespace
}  // namespace bulkhead::jinja
