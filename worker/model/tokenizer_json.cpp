#include "worker/model/tokenizer_json.hpp"

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace bulkhead::model {
namespace {

using nlohmann::json;

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Reads the document without its long parts: vocabulary, merges and other parts that pre-tokenizing does not need.
json outline_of(std::string_view text) {
  const auto keep = [](int depth, json::parse_event_t event, json& parsed) {
    if (event != json::parse_event_t::key) return true;
    const std::string& key = parsed.get_ref<const std::string&>();
    if (depth == 1) return key == "pre_tokenizer" || key == "model";
    return key != "vocab" && key != "merges";
  };
  return json::parse(text, keep, false);
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

bool flag_of(const json& object, const char* key, bool fallback) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() ? found->get<bool>() : fallback;
}

// Returns an expression that matches the string literally.
std::string quoted(const std::string& plain) {
  constexpr std::string_view kSpecial = R"(\^$.[]|()?*+{}-#/)";
  std::string made;
  for (const char c : plain) {
    if (kSpecial.find(c) != kSpecial.npos) made += '\\';
    made += c;
  }
  return made;
}

Error unsupported(const std::string& what) {
  return Error(ErrorCode::kUnsupported,
               "tokenizer.huggingface.json cuts text by " + what + ", which is not supported");
}

// Appends the expressions of one step.
Status add_step(const json& step, std::vector<std::string>& expressions) {
  if (!step.is_object()) return unsupported("a step without a type");
  const std::string type = text_of(step, "type").substr(0, 64);
  if (type == "Digits") {
    expressions.emplace_back(flag_of(step, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    return {};
  }
  if (type == "ByteLevel") {
    if (flag_of(step, "add_prefix_space", true))
      return unsupported("ByteLevel with a space put first");
    if (flag_of(step, "use_regex", true)) expressions.emplace_back(kGpt2);
    return {};
  }
  if (type != "Split") return unsupported("\"" + type + "\"");
  const std::string behavior = text_of(step, "behavior").substr(0, 64);
  const auto pattern = step.find("pattern");
  if (behavior != "Isolated" || pattern == step.end() || !pattern->is_object())
    return unsupported("Split with the behavior \"" + behavior + "\"");
  const std::string regex = text_of(*pattern, "Regex"), plain = text_of(*pattern, "String");
  if (regex.empty() && plain.empty()) return unsupported("Split without a pattern");
  // If pieces are isolated, it makes no difference whether the step names the matches or the text between them.
  expressions.push_back(regex.empty() ? quoted(plain) : regex);
  return {};
}

}  // namespace

Result<PreTokenizerInfo> pre_tokenizer_of_json(std::string_view text) {
  const json outline = outline_of(text);
  const auto corrupt = [](const char* what) {
    return Error(ErrorCode::kCorrupt, std::string("tokenizer.huggingface.json ") + what);
  };
  if (outline.is_discarded() || !outline.is_object()) return corrupt("is no JSON object");
  const auto steps = outline.find("pre_tokenizer");
  if (steps == outline.end() || !steps->is_object()) return corrupt("has no pre_tokenizer");
  std::vector<std::string> expressions;
  if (text_of(*steps, "type") == "Sequence") {
    const auto list = steps->find("pretokenizers");
    if (list == steps->end() || !list->is_array()) return corrupt("has a Sequence of nothing");
    for (const json& step : *list)
      BULKHEAD_RETURN_IF_ERROR(add_step(step, expressions));
  } else {
    BULKHEAD_RETURN_IF_ERROR(add_step(*steps, expressions));
  }
  if (expressions.empty() || expressions.size() > 16)
    return corrupt("has no expressions to cut text by, or more than 16");
  PreTokenizerInfo info;
  info.rule = PreTokenizer::kExpressions;
  const auto vocabulary = outline.find("model");
  info.whole_words_first = vocabulary != outline.end() && vocabulary->is_object() &&
                           flag_of(*vocabulary, "ignore_merges", false);
  BULKHEAD_TRY(info.expressions, Expressions::compile(expressions));
  return info;
}

}  // namespace bulkhead::model
