// Takes any text as a model's answer, in any pieces, for every family. The parser must never fail, and must give the
// same message as for the whole text at once.
//
// Layout: family, seed of the pieces, how it ended, then the text. `\x01` to `\x07` in the text
// stand for the family's marks, so that mutations reach the insides of calls.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "worker/model/answer/answer_parser.hpp"

namespace {

using namespace bulkhead::model::answer;

const char* const kTools =
    R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"x": {"type": "string"}, "y": {"type": "integer"}}}}},
       {"type": "function", "function": {"name": "python"}}])";

std::string with_marks(const Family& family, std::string_view bytes) {
  const Calls& calls = family.calls;
  const std::string marks[] = {
      calls.section + (calls.opens.empty() ? "<|start|>" : calls.opens[0]),
      calls.closers.empty() ? "<|end|>" : calls.closers[0],
      family.reasoning.open,
      family.reasoning.close,
      calls.tags.param_open.empty() ? "{\"name\": \"f\", \"arguments\": {" : calls.tags.param_open,
      calls.tags.key_close + calls.tags.value_open,
      calls.name_ends.empty() ? "<|message|>" : calls.name_ends[0],
  };
  std::string text;
  for (const char byte : bytes) {
    if (byte >= 1 && byte <= 7) {
      text += marks[byte - 1];
    } else {
      text += byte;
    }
  }
  return text;
}

bool same(const Message& one, const Message& other) {
  if (one.content != other.content || one.reasoning != other.reasoning ||
      one.calls.size() != other.calls.size())
    return false;
  for (std::size_t i = 0; i < one.calls.size(); ++i) {
    if (one.calls[i].id != other.calls[i].id || one.calls[i].name != other.calls[i].name ||
        one.calls[i].arguments != other.calls[i].arguments)
      return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  static const Tools tools = *Tools::from_json(kTools);
  const Family& family = families()[data[0] % families().size()];
  std::uint32_t seed = data[1];
  const Ended ended = (data[2] & 1) != 0 ? Ended::kLength : Ended::kStop;
  const std::string text = with_marks(family, {reinterpret_cast<const char*>(data) + 3, size - 3});
  const AnswerRequest request{
      .tools = tools,
      .prompt_end = (data[2] & 2) != 0 ? family.reasoning.open : std::string(),
      .id_seed = data[1]};

  AnswerParser whole(family, request);
  Message at_once;
  at_once.add(whole.feed(text));
  at_once.add(whole.finish(ended));
  AnswerParser parser(family, request);
  Message message;
  for (std::size_t at = 0; at < text.size();) {
    seed = seed * 1664525 + 1013904223;
    const std::size_t bytes = 1 + (seed >> 24) % 9;
    message.add(parser.feed(std::string_view(text).substr(at, bytes)));
    at += bytes;
  }
  message.add(parser.finish(ended));
  if (!same(at_once, message)) {
    std::fprintf(stderr,
                 "%s, ended %d, after \"%s\": pieces of seed %d change the message of:\n%s\n",
                 family.name.c_str(), static_cast<int>(ended), request.prompt_end.c_str(), data[1],
                 text.c_str());
    std::abort();
  }
  return 0;
}
