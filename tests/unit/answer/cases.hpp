// Raw answers as lists of segments, and what a parser must return for them: whole, in pieces, and cut at every byte.
//
// A case lists its segments: `content`, `reasoning`, `name`, `arguments`, `id`, `parameter` (with key and value), and
// `marker` and `blank`, which give nothing. What they give within the first k bytes follows without any parser: E(k).
// Text counts byte by byte; a name, an id and a parameter count when they are complete.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "worker/model/answer/answer_parser.hpp"

namespace bulkhead::model::answer::testing {

using Json = nlohmann::ordered_json;

struct Segment {
  std::string kind;
  std::string text;
  Json data;
};

struct Case {
  std::string family;
  std::string name;
  std::string prompt_end;
  Ended ended = Ended::kStop;
  std::string tools;  // JSON text; empty: no tools are offered
  // What looks like a call is none; while that is undecided, nobody may see it.
  bool whole_only = false;
  std::vector<Segment> segments;
  std::string raw;
  Json expected;  // null: what the segments give
};

// Reads the cases of one file, in the format of the fixtures' output/FAMILY.json. `raw` and `expected` may be left
// out.
std::vector<Case> read_cases(const std::filesystem::path& file);

struct ExpectedCall {
  std::string name;
  std::string id;         // empty: any id
  std::string arguments;  // text so far
  Json object;            // from `parameter` segments
  bool tagged = false;    // `object` counts instead of `arguments`
};
struct Expected {
  std::string content;
  std::string reasoning;
  std::vector<ExpectedCall> calls;
};
Expected expected_at(const Case& each, std::size_t bytes);

AnswerParser parser_for(const Case& each);
// Feeds pieces of `step` bytes (0: everything at once) and finishes.
Message parse(const Case& each, std::string_view raw, std::size_t step, Ended ended);

// If they fail, they report the case's name and the position.
void expect_whole(const Case& each, std::size_t step);
void expect_cut_anywhere(const Case& each);
void expect_deltas_keep_up(const Case& each);

}  // namespace bulkhead::model::answer::testing
