// Declares the requests that a worker answers with one message and without generating tokens, such as /tokenize. Each
// request has a parser and a function that renders the answer; a row of routes.cpp names both. All functions are pure.
#pragma once

#include <string>
#include <string_view>

#include "ipc/messages.hpp"
#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {

template <typename Message>
struct QuestionRequest {
  std::string model;  // empty: the only model
  Message message;
};
using TokenizeRequest = QuestionRequest<ipc::Tokenize>;
using DetokenizeRequest = QuestionRequest<ipc::Detokenize>;
using ApplyTemplateRequest = QuestionRequest<ipc::ApplyTemplate>;
using CheckConstraintRequest = QuestionRequest<ipc::CheckConstraint>;

Parsed<TokenizeRequest> parse_tokenize(std::string_view body);
std::string tokenized_body(const ipc::FromWorker& tokenized);

Parsed<DetokenizeRequest> parse_detokenize(std::string_view body);
std::string detokenized_body(const ipc::FromWorker& detokenized);

// Reads a chat and adds the present time. Ignores fields that only a generated answer needs.
Parsed<ApplyTemplateRequest> parse_apply_template(std::string_view body);
std::string applied_template_body(const ipc::FromWorker& applied);

// Reads the form of an answer (response_format, json_schema, grammar, ...) as a completion's request has it.
Parsed<CheckConstraintRequest> parse_check_constraint(std::string_view body);
std::string checked_constraint_body(const ipc::FromWorker& checked);

}  // namespace bulkhead::orchestrator
