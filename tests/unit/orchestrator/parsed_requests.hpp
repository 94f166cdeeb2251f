// Readers of parsed requests, for tests.
#pragma once

#include <string>
#include <variant>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {

// Returns the refusal's message; empty if the request was taken.
inline std::string refusal(const Parsed<GenerationRequest>& parsed) {
  const auto* error = std::get_if<ApiError>(&parsed);
  return error == nullptr ? "" : error->message;
}

// Returns why a request was refused; null if it was not.
inline const ApiError* error_of(const Parsed<GenerationRequest>& parsed) {
  return std::get_if<ApiError>(&parsed);
}

// Returns the chat that the worker would get. A refusal fails the test.
inline nlohmann::json chat_of(const Parsed<GenerationRequest>& parsed) {
  if (const std::string message = refusal(parsed); !message.empty()) {
    ADD_FAILURE() << message;
    return {};
  }
  const auto& request = std::get<GenerationRequest>(parsed);
  return nlohmann::json::parse(std::get<ipc::ChatPrompt>(request.prompts.at(0)).json);
}

}  // namespace bulkhead::orchestrator
