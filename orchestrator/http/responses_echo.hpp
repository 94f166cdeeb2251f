// The members of a response that repeat its request. Clients that check answers against a schema (OpenAI's and that of
// Open Responses, https://www.openresponses.org) want all of them, also where the request lacks them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bulkhead::orchestrator {

struct ResponsesEcho {
  std::string members;  // JSON: each with a comma before it, and without any line break
  std::vector<std::string> open_samplers;  // those that the request leaves to the model's file
  std::string tools;  // JSON: the list as the client wrote it; empty if there is none
  bool store = true;
};

// `body` is a valid request.
ResponsesEcho responses_echo(std::string_view body);

}  // namespace bulkhead::orchestrator
