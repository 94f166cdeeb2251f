#include "tests/unit/answer/cases.hpp"

#include <algorithm>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "tests/support/sample.hpp"
#include "worker/model/answer/json_text.hpp"

namespace bulkhead::model::answer::testing {
namespace {

std::string at(const Case& each, std::size_t bytes) {
  return each.family + "/" + each.name + " at " + std::to_string(bytes) + ": " +
         each.raw.substr(0, bytes);
}

std::vector<std::string> marks_of(const Case& each) {
  const Family& family = *family_named(each.family);
  std::vector<std::string> marks = {family.reasoning.open, family.reasoning.close,
                                    family.response.open,  family.response.close,
                                    family.calls.section,  family.calls.code_open};
  for (const auto* list : {&family.calls.opens, &family.calls.closers, &family.skips})
    marks.insert(marks.end(), list->begin(), list->end());
  if (family.calls.syntax == CallSyntax::kChannels)
    marks.insert(marks.end(), {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"});
  return marks;
}

// Says whether what is left is blanks, and perhaps the beginning of a mark.
bool may_be_left(const Case& each, std::string_view text) {
  const std::string_view with_blanks = text;  // a mark may begin with one
  text = text.substr(std::min(text.find_first_not_of(kBlanks), text.size()));
  if (text.empty()) return true;
  if (bare_begins(family_named(each.family)->calls).find(text[0]) != std::string_view::npos)
    return true;
  for (const std::string& mark : marks_of(each)) {
    if (mark.starts_with(text) || mark.starts_with(with_blanks)) return true;
  }
  return false;
}

bool same_but_for_the_end(const Case& each, std::string_view got, std::string_view want) {
  if (got.size() > want.size()) std::swap(got, want);
  return want.starts_with(got) && may_be_left(each, want.substr(got.size()));
}

// Says whether `text` is the beginning of an object with `want`'s members, the last of which may be incomplete.
bool begins_object(std::string text, const Json& want) {
  if (text.empty() || text == "{}") return want.empty();
  for (const char* end : {"", "}", "\"}"}) {
    const Json whole = Json::parse(text + end, nullptr, false);
    if (whole.is_discarded()) continue;
    for (const auto& [key, value] : want.items()) {
      if (!whole.contains(key) || whole[key] != value) return false;
    }
    return true;
  }
  return false;
}

void expect_message(const Case& each, const Message& got, const Json& want) {
  const std::string content = want["content"].is_null() ? "" : want["content"].get<std::string>();
  EXPECT_EQ(got.content, content) << each.raw;
  EXPECT_EQ(got.content.empty() && !got.calls.empty(), want["content"].is_null()) << each.raw;
  const Json& reasoning = want["reasoning_content"];
  EXPECT_EQ(got.reasoning, reasoning.is_null() ? "" : reasoning.get<std::string>()) << each.raw;
  EXPECT_EQ(got.finish_reason(each.ended), want["finish_reason"].get<std::string>());
  const Json& calls = want["tool_calls"];
  ASSERT_EQ(got.calls.size(), calls.size()) << each.raw;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(got.calls[i].name, calls[i]["name"].get<std::string>());
    if (calls[i].contains("id")) {
      EXPECT_EQ(got.calls[i].id, calls[i]["id"].get<std::string>());
    }
    const std::string& arguments = got.calls[i].arguments;
    if (calls[i].contains("arguments_text")) {
      EXPECT_EQ(arguments, calls[i]["arguments_text"].get<std::string>());
    } else if (each.ended == Ended::kStop) {
      EXPECT_EQ(Json::parse(arguments, nullptr, false), calls[i]["arguments"]) << arguments;
    } else {
      EXPECT_TRUE(begins_object(arguments, calls[i]["arguments"])) << arguments;
    }
  }
}

void expect_calls(const Case& each, const Message& got, const Expected& want) {
  ASSERT_EQ(got.calls.size(), want.calls.size());
  for (std::size_t i = 0; i < want.calls.size(); ++i) {
    EXPECT_EQ(got.calls[i].name, want.calls[i].name);
    if (!want.calls[i].id.empty()) {
      EXPECT_EQ(got.calls[i].id, want.calls[i].id);
    }
    if (want.calls[i].tagged) {
      EXPECT_TRUE(begins_object(got.calls[i].arguments, want.calls[i].object))
          << got.calls[i].arguments;
    } else {
      const bool whole = each.ended == Ended::kStop || i + 1 < want.calls.size();
      EXPECT_TRUE(got.calls[i].arguments == want.calls[i].arguments ||
                  (whole && want.calls[i].arguments.empty() && got.calls[i].arguments == "{}"))
          << got.calls[i].arguments << " and not " << want.calls[i].arguments;
    }
  }
}

}  // namespace

std::vector<Case> read_cases(const std::filesystem::path& file) {
  std::ifstream in(file);
  const Json json = Json::parse(in);
  std::vector<Case> cases;
  for (const Json& each : json["cases"]) {
    Case one;
    one.family = json["family"];
    one.name = each["name"];
    one.prompt_end = each.value("prompt_ends_with", "");
    one.ended = each.value("ended", "stop") == "stop" ? Ended::kStop : Ended::kLength;
    if (each.value("tools_offered", true)) one.tools = json["tools"].dump();
    one.whole_only = each.value("whole_only", false);
    for (const Json& segment : each["segments"]) {
      one.segments.push_back({segment[0], segment[1], segment.size() > 2 ? segment[2] : Json()});
      one.raw += one.segments.back().text;
    }
    if (each.contains("expected")) one.expected = each["expected"];
    cases.push_back(one);
  }
  return cases;
}

Expected expected_at(const Case& each, std::size_t bytes) {
  Expected result;
  std::size_t begin = 0;
  std::string id;  // comes before the name of its call
  for (const Segment& segment : each.segments) {
    const std::string text =
        segment.text.substr(0, bytes > begin ? std::min(bytes - begin, segment.text.size()) : 0);
    begin += segment.text.size();
    const bool whole = bytes >= begin;
    if (segment.kind == "content") result.content += text;
    if (segment.kind == "reasoning") result.reasoning += text;
    if (segment.kind == "arguments" && !text.empty()) result.calls.back().arguments += text;
    if (segment.kind == "name" && whole)
      result.calls.push_back(
          {segment.data.is_object() ? segment.data["name"].get<std::string>() : segment.text,
           id,
           {},
           Json::object(),
           false});
    if (segment.kind == "id" && whole) {
      const bool behind = !result.calls.empty() && segment.data.is_null();
      behind ? result.calls.back().id = segment.text : id = segment.text;
    }
    if (segment.kind == "parameter") {
      if (!result.calls.empty()) result.calls.back().tagged = true;
      if (whole)
        result.calls.back().object[segment.data["key"].get<std::string>()] = segment.data["value"];
    }
  }
  return result;
}

// Reads each text once: some tests need a parser for every cut of a case.
const Tools& tools_of(const std::string& text) {
  static std::map<std::string, Tools> read;
  const auto found = read.find(text);
  if (found != read.end()) return found->second;
  Result<Tools> tools = Tools::from_json(text);
  EXPECT_TRUE(tools.ok());
  return read.emplace(text, tools.ok() ? *std::move(tools) : Tools()).first->second;
}

AnswerParser parser_for(const Case& each) {
  return AnswerParser(*family_named(each.family), {.tools = tools_of(each.tools),
                                                   .prompt_end = each.prompt_end,
                                                   .id_seed = 7});
}

Message parse(const Case& each, std::string_view raw, std::size_t step, Ended ended) {
  AnswerParser parser = parser_for(each);
  Message message;
  if (step == 0) step = raw.size() + 1;
  for (std::size_t at = 0; at < raw.size(); at += step)
    message.add(parser.feed(raw.substr(at, step)));
  message.add(parser.finish(ended));
  return message;
}

void expect_whole(const Case& each, std::size_t step) {
  SCOPED_TRACE(each.family + "/" + each.name + " in pieces of " + std::to_string(step));
  const Message got = parse(each, each.raw, step, each.ended);
  if (!each.expected.is_null()) return expect_message(each, got, each.expected);
  const Expected want = expected_at(each, each.raw.size());
  EXPECT_EQ(got.content, want.content);
  EXPECT_EQ(got.reasoning, want.reasoning);
  expect_calls(each, got, want);
}

void expect_cut_anywhere(const Case& each) {
  if (each.whole_only) return;
  const Message final = parse(each, each.raw, 0, each.ended);
  for (std::size_t bytes = 0; bytes <= each.raw.size(); bytes += test::kStride) {
    SCOPED_TRACE(at(each, bytes));
    const Message got = parse(each, each.raw.substr(0, bytes), 0, Ended::kLength);
    const Expected want = expected_at(each, bytes);
    EXPECT_TRUE(same_but_for_the_end(each, got.content, want.content))
        << got.content << " and not " << want.content;
    EXPECT_TRUE(same_but_for_the_end(each, got.reasoning, want.reasoning))
        << got.reasoning << " and not " << want.reasoning;
    ASSERT_EQ(got.calls.size(), want.calls.size());
    for (std::size_t i = 0; i < want.calls.size(); ++i) {
      EXPECT_EQ(got.calls[i].name, want.calls[i].name);
      const std::string& arguments = got.calls[i].arguments;
      const CallSyntax syntax = family_named(each.family)->calls.syntax;
      EXPECT_TRUE(final.calls[i].arguments.starts_with(arguments)) << arguments;
      if (syntax == CallSyntax::kBareKeys || syntax == CallSyntax::kPython) continue;
      if (want.calls[i].tagged) {
        EXPECT_TRUE(begins_object(arguments, want.calls[i].object)) << arguments;
      } else if (arguments != "{}") {
        EXPECT_TRUE(want.calls[i].arguments.starts_with(arguments)) << arguments;
      }
    }
  }
}

void expect_deltas_keep_up(const Case& each) {
  if (each.whole_only) return;
  AnswerParser parser = parser_for(each);
  const Message final = parse(each, each.raw, 0, each.ended);
  Message message;
  for (std::size_t bytes = 1; bytes <= each.raw.size(); ++bytes) {
    SCOPED_TRACE(at(each, bytes));
    message.add(parser.feed(std::string_view(each.raw).substr(bytes - 1, 1)));
    const Expected want = expected_at(each, bytes);
    ASSERT_TRUE(want.content.starts_with(message.content)) << message.content;
    ASSERT_TRUE(want.reasoning.starts_with(message.reasoning)) << message.reasoning;
    EXPECT_TRUE(may_be_left(each, want.content.substr(message.content.size()))) << message.content;
    EXPECT_TRUE(may_be_left(each, want.reasoning.substr(message.reasoning.size())))
        << message.reasoning;
    ASSERT_LE(message.calls.size(), want.calls.size());
    for (std::size_t i = 0; i < message.calls.size(); ++i) {
      EXPECT_EQ(message.calls[i].name, final.calls[i].name);
      EXPECT_EQ(message.calls[i].id, final.calls[i].id);
      EXPECT_TRUE(final.calls[i].arguments.starts_with(message.calls[i].arguments));
    }
  }
}

}  // namespace bulkhead::model::answer::testing
