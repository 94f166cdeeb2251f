// `bulkhead parse-answer`: shows how a server splits a model's raw text into content, reasoning and calls.

#include <nlohmann/json.hpp>

#include "config/base/fnv1a.hpp"
#include "tools/cli/commands.hpp"
#include "worker/model/answer/answer_parser.hpp"
#include "worker/model/answer/derived_family.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::cli {
namespace {

namespace answer = model::answer;
using Json = nlohmann::ordered_json;

Result<std::string> template_text(const ParseAnswerOptions& options) {
  if (options.model.empty()) return read_file(options.template_file);
  BULKHEAD_TRY(const auto file, model::GgufFile::open(options.model));
  BULKHEAD_TRY(const auto found, file->get_string("tokenizer.chat_template"));
  if (!found)
    return Error(ErrorCode::kUnsupported,
                 options.model + " has no chat template; give one by --template");
  return std::string(*found);
}

// Returns a member that is a string, or `otherwise` if there is no such member.
Result<std::string> text_member(const Json& json, const char* key, const char* otherwise) {
  if (!json.contains(key) || json[key].is_null()) return std::string(otherwise);
  if (!json[key].is_string())
    return Error(ErrorCode::kInvalidArgument, std::string(key) + " is not a string");
  return json[key].get<std::string>();
}

struct RawAnswer {
  std::string raw;
  answer::Ended ended = answer::Ended::kStop;
  answer::AnswerRequest request;
};

Result<RawAnswer> read_answer(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("raw"))
    return Error(ErrorCode::kInvalidArgument,
                 "stdin is not a JSON object with \"raw\", and if need be \"ended\", "
                 "\"prompt_ends_with\", \"continued\" and \"tools\"");
  RawAnswer result;
  BULKHEAD_TRY(result.raw, text_member(json, "raw", ""));
  BULKHEAD_TRY(const std::string ended, text_member(json, "ended", "stop"));
  if (ended != "stop" && ended != "length")
    return Error(ErrorCode::kInvalidArgument, "ended is \"" + ended + "\": write stop or length");
  if (ended == "length") result.ended = answer::Ended::kLength;
  BULKHEAD_TRY(result.request.prompt_end, text_member(json, "prompt_ends_with", ""));
  BULKHEAD_TRY(result.request.continued, text_member(json, "continued", ""));
  if (json.contains("tools")) {
    BULKHEAD_TRY(result.request.tools, answer::Tools::from_json(json["tools"].dump()));
  }
  result.request.id_seed = fnv1a(result.raw);
  return result;
}

// Returns how many bytes the first `count` characters have (0: all).
std::size_t leading_bytes(std::string_view text, std::size_t count) {
  if (count == 0) return text.size();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count && bytes < text.size(); ++i)
    bytes += model::decode_char(text.substr(bytes)).bytes;
  return bytes;
}

Json as_json(const answer::Message& message, answer::Ended ended) {
  Json calls = Json::array();
  for (const answer::Call& call : message.calls)
    calls.push_back({{"id", call.id},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  const bool no_text = message.content.empty() && !message.calls.empty();
  return {{"content", no_text ? Json() : Json(message.content)},
          {"reasoning_content", message.reasoning.empty() ? Json() : Json(message.reasoning)},
          {"tool_calls", calls},
          {"finish_reason", message.finish_reason(ended)}};
}

}  // namespace

int run_parse_answer(const ParseAnswerOptions& options) {
  const Result<std::string> source = template_text(options);
  if (!source.ok()) return fail(source.error());
  const Result<std::string> text = read_stdin();
  if (!text.ok()) return fail(text.error());
  Result<RawAnswer> answer = read_answer(*text);
  if (!answer.ok()) return fail(answer.error());

  const Result<jinja::Chat> chat = jinja::Chat::load(*source, "", "");
  const answer::Family& family =
      chat.ok() ? answer::family_of_chat(*chat) : answer::family_of_template(*source);
  answer::AnswerParser parser(family, std::move(answer->request));
  answer::Message message;
  for (std::string_view rest = answer->raw; !rest.empty();) {
    const std::size_t bytes = leading_bytes(rest, options.pieces);
    message.add(parser.feed(rest.substr(0, bytes)));
    rest.remove_prefix(bytes);
  }
  message.add(parser.finish(answer->ended));
  const Json json = as_json(message, answer->ended);
  return put(json_text(json) + "\n") ? 0 : 1;
}

}  // namespace bulkhead::cli
