// The scripted worker's answers in a chat. An answer is the raw text of a model, which the worker cuts into parts in
// the format of the model's family. The text comes from the request's chat_template_kwargs ("raw", "family"), or from
// the file that FAKE_ANSWERS names:
//   {"family": NAME, "orders": TEXT, "answers": [RAW, ...]}
// With the file, a chat that offers tools gets the answer whose index is the number of tools' results in the chat, or
// the last answer. A chat without tools gets `{"title": "A title"}`, because agents ask in that way for their
// sessions' titles. Agents' prompts are long, so the worker takes no orders from them: it takes only `orders`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "ipc/messages.hpp"

namespace bulkhead::test {

struct FakeAnswer {
  std::string raw, family;
  std::optional<std::string> orders;  // orders that replace those in the prompt
};

inline std::optional<FakeAnswer> fake_answer(const ipc::ChatPrompt& chat, const std::string& file) {
  using nlohmann::json;
  const json asked = json::parse(chat.json);
  if (!file.empty()) {
    std::ifstream stream(file);
    const json script = json::parse(stream);
    std::size_t results = 0;
    for (const json& message : asked.at("messages"))
      results += message.at("role") == "tool" ? 1 : 0;
    const json& answers = script.at("answers");
    const bool tools = !asked.value("tools", json::array()).empty();
    return FakeAnswer{tools ? answers.at(std::min(results, answers.size() - 1)).get<std::string>()
                            : std::string(R"({"title": "A title"})"),
                      script.at("family"), script.value("orders", "")};
  }
  const json more = asked.value("chat_template_kwargs", json::object());
  if (!more.contains("raw")) return std::nullopt;
  return FakeAnswer{more["raw"], more.value("family", "hermes"), std::nullopt};
}

}  // namespace bulkhead::test
