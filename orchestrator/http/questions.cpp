#include "orchestrator/http/questions.hpp"

#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "ipc/utf8.hpp"
#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

// Parses a question's body. `read` reads all fields but "model" into the message.
template <typename Message, typename Read>
Parsed<QuestionRequest<Message>> parse_question(std::string_view body, Read read) {
  Parsed<json> object = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&object)) return *error;
  Fields fields(std::get<json>(object));
  QuestionRequest<Message> request;
  request.model = fields.text("model");
  read(fields, request.message);
  if (!fields.ok()) return fields.error();
  return request;
}

// Appends a token's text, as llama.cpp does: a string, or an array of bytes if they are not UTF-8.
void append_piece(std::string& out, std::string_view bytes) {
  if (ipc::is_utf8(bytes)) return append_json_string(out, bytes);
  out += '[';
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(static_cast<unsigned char>(bytes[i]));
  }
  out += ']';
}

}  // namespace

Parsed<TokenizeRequest> parse_tokenize(std::string_view body) {
  return parse_question<ipc::Tokenize>(body, [](Fields& fields, ipc::Tokenize& message) {
    const char* name = fields.get("content") != nullptr ? "content"
                       : fields.get("text") != nullptr  ? "text"
                                                        : "prompt";
    if (fields.get(name) == nullptr)
      fields.refuse(name, "is missing: the text to tokenize.", "missing_parameter");
    message.text = fields.text(name);
    message.add_special = fields.boolean("add_special", fields.boolean("add_special_tokens", true));
    message.parse_special = fields.boolean("parse_special", true);
    // llama.cpp's and vLLM's names for each token's text.
    const bool pieces = fields.boolean("with_pieces", false);
    const bool vocabulary = fields.boolean("return_token_strs", false);
    if (pieces && vocabulary)
      fields.refuse("return_token_strs", "and 'with_pieces' can't both be true.",
                    "invalid_combination");
    message.texts = pieces       ? ipc::TokenTexts::kPieces
                    : vocabulary ? ipc::TokenTexts::kVocabulary
                                 : ipc::TokenTexts::kNone;
  });
}

std::string tokenized_body(const ipc::FromWorker& tokenized) {
  const auto& answer = std::get<ipc::Tokenized>(tokenized);
  const bool with_pieces = answer.form == ipc::TokenTexts::kPieces;
  std::string body = "{\"tokens\":[";
  for (std::size_t i = 0; i < answer.tokens.size(); ++i) {
    if (i > 0) body += ',';
    const std::string id = std::to_string(answer.tokens[i]);
    if (with_pieces) {
      body += "{\"id\":" + id + ",\"piece\":";
      append_piece(body, answer.texts[i].bytes);
      body += '}';
    } else {
      body += id;
    }
  }
  body += "],\"count\":" + std::to_string(answer.tokens.size());
  if (answer.form == ipc::TokenTexts::kVocabulary) {
    body += ",\"token_strs\":[";
    for (std::size_t i = 0; i < answer.texts.size(); ++i) {
      if (i > 0) body += ',';
      append_json_string(body, answer.texts[i].bytes);
    }
    body += ']';
  }
  return body + '}';
}

Parsed<DetokenizeRequest> parse_detokenize(std::string_view body) {
  return parse_question<ipc::Detokenize>(body, [](Fields& fields, ipc::Detokenize& message) {
    const json* tokens = fields.get("tokens");
    if (tokens == nullptr) {
      fields.refuse("tokens", "is missing: the ids to turn into text.", "missing_parameter");
    } else if (!tokens->is_array()) {
      fields.wrong_type("tokens", "an array of token ids", *tokens);
    } else {
      read_ids(fields, "tokens", *tokens, message.tokens);
    }
  });
}

std::string detokenized_body(const ipc::FromWorker& detokenized) {
  const std::string& text = std::get<ipc::Detokenized>(detokenized).text;
  std::string body = "{\"prompt\":";  // the field's name in the request, and in llama.cpp's answer
  append_json_string(body, text);
  body += ",\"content\":";
  append_json_string(body, text);
  return body + '}';
}

Parsed<ApplyTemplateRequest> parse_apply_template(std::string_view body) {
  return parse_question<ipc::ApplyTemplate>(body, [&](Fields& fields, ipc::ApplyTemplate& message) {
    message.prompt = {read_chat(fields, body), local_seconds()};
  });
}

std::string applied_template_body(const ipc::FromWorker& applied) {
  const auto& answer = std::get<ipc::AppliedTemplate>(applied);
  std::string body = "{\"prompt\":";
  append_json_string(body, answer.text);
  body += ",\"warnings\":[";
  for (std::size_t i = 0; i < answer.warnings.size(); ++i) {
    if (i > 0) body += ',';
    append_json_string(body, answer.warnings[i]);
  }
  return body + "]}";
}

Parsed<CheckConstraintRequest> parse_check_constraint(std::string_view body) {
  return parse_question<ipc::CheckConstraint>(
      body, [&](Fields& fields, ipc::CheckConstraint& message) {
        read_constraint(fields, body, message.constraint);
        if (message.constraint.kind == ipc::ConstraintKind::kNone && fields.ok())
          fields.refuse("response_format",
                        "is missing: the form to check. A grammar, a regex or another name of a "
                        "form may stand in its place.",
                        "missing_parameter");
      });
}

std::string checked_constraint_body(const ipc::FromWorker&) {
  return R"({"valid":true})";
}

}  // namespace bulkhead::orchestrator
