// What the scripted worker says in a chat: the raw text of a model, which is read into parts as its family writes
// them. The request has it, in its chat_template_kwargs ("raw", "family"), or the file that FAKE_ANSWERS names:
//   {"family": NAME, "orders": TEXT, "answers": [RAW, ...]}
// There a chat that offers tools gets the answer whose index is the number of tools' results in it, or the last one;
// a chat without tools gets `{"title": "A title"}`, since agents ask so for their sessions' titles. Agents' prompts
// are long: nothing in them is an order to the worker but `orders`.
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
  std::optional<std::string> orders;  // instead of those in the prompt
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
