// Writes answers as JSON and as server-sent events, and appends them to strings. openai_request.cpp reads requests.
#include <algorithm>
#include <cmath>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "config/base/fnv1a.hpp"
#include "ipc/utf8.hpp"
#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {

namespace {

void append_number(std::string& out, std::uint64_t value) {
  fmt::format_to(std::back_inserter(out), "{}", value);
}

void append_logprob(std::string& out, float value) {
  // JSON has no infinities; OpenAI writes -9999.0 for "as good as impossible".
  fmt::format_to(std::back_inserter(out), "{}", std::isfinite(value) ? value : -9999.0F);
}

void append_ids(std::string& out, std::span<const ipc::TokenId> ids) {
  out += '[';
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, ids[i]);
  }
  out += ']';
}

void append_head(std::string& out, const AnswerHead& head, const char* object) {
  out += "{\"id\":";
  append_json_string(out, head.id);
  fmt::format_to(std::back_inserter(out), ",\"object\":\"{}\",\"created\":{},\"model\":", object,
                 head.created);
  append_json_string(out, head.model);
  if (head.fingerprint.empty()) return;
  out += ",\"system_fingerprint\":";
  append_json_string(out, head.fingerprint);
}

// Writes the extension "return_token_ids": those of the part's ids that exist.
void append_token_ids(std::string& out, const ChoicePart& part) {
  if (part.token_ids) {
    out += ",\"token_ids\":";
    append_ids(out, *part.token_ids);
  }
  if (part.prompt_token_ids != nullptr) {
    out += ",\"prompt_token_ids\":";
    append_ids(out, *part.prompt_token_ids);
  }
}

void append_field(std::string& out, std::string_view name, std::string_view text) {
  fmt::format_to(std::back_inserter(out), "\"{}\":", name);
  append_json_string(out, text);
}

// Writes what a chunk adds to an answer in parts: first a call's id and name, once, then pieces of its arguments.
void append_piece(std::string& out, const ipc::AnswerPart& piece) {
  switch (piece.kind) {
    case ipc::PartKind::kContent:
      return append_field(out, "content", piece.text);
    case ipc::PartKind::kReasoning:
      return append_field(out, "reasoning_content", piece.text);
    case ipc::PartKind::kCall:
      fmt::format_to(std::back_inserter(out), "\"tool_calls\":[{{\"index\":{},", piece.call);
      append_field(out, "id", piece.id);
      out += ",\"type\":\"function\",\"function\":{";
      append_field(out, "name", piece.text);
      out += ",\"arguments\":\"\"}}]";
      return;
    case ipc::PartKind::kArguments:
      fmt::format_to(std::back_inserter(out), "\"tool_calls\":[{{\"index\":{},\"function\":{{",
                     piece.call);
      append_field(out, "arguments", piece.text);
      out += "}}]";
      return;
  }
}

void append_message(std::string& out, const ChoicePart& part) {
  out += ",\"message\":{\"role\":\"assistant\",";
  if (part.text.empty() && !part.calls.empty()) {
    out += "\"content\":null";
  } else {
    append_field(out, "content", part.text);
  }
  if (!part.reasoning.empty()) {
    out += ',';
    append_field(out, "reasoning_content", part.reasoning);
  }
  for (std::size_t i = 0; i < part.calls.size(); ++i) {
    out += i == 0 ? ",\"tool_calls\":[{" : ",{";
    append_field(out, "id", part.calls[i].id);
    out += ",\"type\":\"function\",\"function\":{";
    append_field(out, "name", part.calls[i].name);
    out += ',';
    append_field(out, "arguments", part.calls[i].arguments);
    out += "}}";
  }
  if (!part.calls.empty()) out += ']';
  out += ",\"refusal\":null}";
}

void append_choice(std::string& out, const AnswerHead& head, const ChoicePart& part, bool whole) {
  out += "{\"index\":";
  append_number(out, part.index);
  if (head.chat && whole) {
    append_message(out, part);
  } else if (head.chat) {
    out += ",\"delta\":{";
    if (part.role) out += "\"role\":\"assistant\",";
    if (part.piece != nullptr) {
      append_piece(out, *part.piece);
    } else if (part.finish_reason.empty() || !part.text.empty()) {
      out += "\"content\":";
      append_json_string(out, part.text);
    }
    out += '}';
  } else {
    out += ",\"text\":";
    append_json_string(out, part.text);
  }
  out += ",\"logprobs\":";
  out += part.logprobs.empty() ? std::string_view("null") : part.logprobs;
  out += ",\"finish_reason\":";
  if (part.finish_reason.empty()) {
    out += "null";
  } else {
    append_json_string(out, part.finish_reason);
  }
  append_token_ids(out, part);
  out += '}';
}

void append_usage(std::string& out, const Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
                 "\"prompt_tokens_details\":{{\"cached_tokens\":{}}}",
                 usage.prompt_tokens, usage.completion_tokens,
                 usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens);
  std::string details;
  const auto detail = [&details](const char* name, std::uint64_t tokens) {
    if (tokens == 0) return;
    fmt::format_to(std::back_inserter(details), "{}\"{}\":{}", details.empty() ? "" : ",", name,
                   tokens);
  };
  detail("reasoning_tokens", usage.reasoning_tokens);
  detail("accepted_prediction_tokens", usage.accepted_drafts);
  detail("rejected_prediction_tokens", usage.rejected_drafts);
  if (!details.empty()) out += ",\"completion_tokens_details\":{" + details + '}';
  out += '}';
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  std::size_t plain = 0;  // start of the text that needs no escape
  std::size_t i = 0;
  auto flush = [&] { out.append(text.substr(plain, i - plain)); };
  while (i < text.size()) {
    auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80) {
      const std::size_t length = ipc::utf8_character(text.substr(i));
      if (length > 0) {
        i += length;
        continue;
      }
      flush();
      out += "\xef\xbf\xbd";
    } else if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) {
      ++i;
      continue;
    } else {
      flush();
      switch (c) {
        case '"':
          out += "\\\"";
          break;
        case '\\':
          out += "\\\\";
          break;
        case '\n':
          out += "\\n";
          break;
        case '\r':
          out += "\\r";
          break;
        case '\t':
          out += "\\t";
          break;
        default:
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
      }
    }
    plain = ++i;
  }
  flush();
  out += '"';
}

const char* finish_reason_name(ipc::FinishReason reason, bool calls_tools) {
  if (reason == ipc::FinishReason::kLength) return "length";
  return calls_tools ? "tool_calls" : "stop";
}

std::string error_body(const ApiError& error) {
  std::string out = "{\"error\":{\"message\":";
  append_json_string(out, error.message);
  out += ",\"type\":";
  append_json_string(out, error.type);
  for (auto [name, value] :
       {std::pair{"param", &error.parameter}, std::pair{"code", &error.code}}) {
    fmt::format_to(std::back_inserter(out), ",\"{}\":", name);
    if (value->empty()) {
      out += "null";
    } else {
      append_json_string(out, *value);
    }
  }
  out += "}}";
  return out;
}

namespace {

void append_comma(std::string& list) {
  if (!list.empty()) list += ',';
}

void append_token_name(std::string& out, const std::string& bytes) {
  // Part of a character has no text of its own; OpenAI writes its bytes out.
  if (ipc::is_utf8(bytes)) return append_json_string(out, bytes);
  std::string escaped = "bytes:";
  for (const char c : bytes)
    fmt::format_to(std::back_inserter(escaped), "\\x{:02x}", static_cast<unsigned char>(c));
  append_json_string(out, escaped);
}

}  // namespace

void LogprobsJson::add(std::span<const ipc::TokenLogprob> logprobs) {
  const auto comma = append_comma;
  const auto name = append_token_name;
  auto entry = [&](std::string& out, const std::string& bytes, float logprob) {
    out += "{\"token\":";
    name(out, bytes);
    out += ",\"logprob\":";
    append_logprob(out, logprob);
    out += ",\"bytes\":[";
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (i > 0) out += ',';
      append_number(out, static_cast<unsigned char>(bytes[i]));
    }
    out += ']';
  };
  for (const ipc::TokenLogprob& token : logprobs) {
    std::size_t shown = std::min<std::size_t>(token.top.size(), top_);
    if (chat_) {
      comma(content_);
      entry(content_, token.bytes, token.logprob);
      content_ += ",\"top_logprobs\":[";
      for (std::size_t i = 0; i < shown; ++i) {
        if (i > 0) content_ += ',';
        entry(content_, token.top[i].bytes, token.top[i].logprob);
        content_ += '}';
      }
      content_ += "]}";
      continue;
    }
    comma(tokens_);
    name(tokens_, token.bytes);
    comma(values_);
    append_logprob(values_, token.logprob);
    add_offset(token.bytes);
    comma(tops_);
    // The token itself is always in the list, so the list may have one entry more than was asked for, as OpenAI's
    // has.
    bool itself = false;
    tops_ += '{';
    for (std::size_t i = 0; i < shown; ++i) {
      if (i > 0) tops_ += ',';
      name(tops_, token.top[i].bytes);
      tops_ += ':';
      append_logprob(tops_, token.top[i].logprob);
      itself |= token.top[i].bytes == token.bytes;
    }
    if (!itself) {
      if (shown > 0) tops_ += ',';
      name(tops_, token.bytes);
      tops_ += ':';
      append_logprob(tops_, token.logprob);
    }
    tops_ += '}';
  }
}

void LogprobsJson::add_offset(const std::string& bytes) {
  append_comma(offsets_);
  append_number(offsets_, offset_);
  for (const char c : bytes)
    offset_ += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
}

void LogprobsJson::add_first(const ipc::TokenLogprob& token) {
  append_comma(tokens_);
  append_token_name(tokens_, token.bytes);
  add_offset(token.bytes);
  for (std::string* list : {&values_, &tops_}) {
    append_comma(*list);
    *list += "null";
  }
}

std::string LogprobsJson::take_elements() {
  return std::exchange(content_, {});
}

std::string LogprobsJson::take() {
  std::string out;
  if (chat_) {
    out = "{\"content\":[" + content_ + "],\"refusal\":null}";
  } else {
    out = "{\"tokens\":[" + tokens_ + "],\"token_logprobs\":[" + values_ + "],\"top_logprobs\":[" +
          tops_ + "],\"text_offset\":[" + offsets_ + "]}";
  }
  for (std::string* part : {&content_, &tokens_, &values_, &tops_, &offsets_})
    part->clear();
  return out;
}

std::string system_fingerprint(std::string_view identity) {
  return identity.empty() ? "" : fmt::format("fp_{:016x}", fnv1a(identity));
}

std::string sse_chunk(const AnswerHead& head, const ChoicePart& part, bool null_usage) {
  std::string out = "data: ";
  append_head(out, head, head.chat ? "chat.completion.chunk" : "text_completion");
  out += ",\"choices\":[";
  append_choice(out, head, part, false);
  out += ']';
  // The ids are in the chunk as well as in its choice; a chunk has only one choice.
  append_token_ids(out, part);
  if (null_usage) out += ",\"usage\":null";
  out += "}\n\n";
  return out;
}

std::string sse_usage(const AnswerHead& head, const Usage& usage) {
  std::string out = "data: ";
  append_head(out, head, head.chat ? "chat.completion.chunk" : "text_completion");
  out += ",\"choices\":[],\"usage\":";
  append_usage(out, usage);
  out += "}\n\n";
  return out;
}

std::string sse_error(const ApiError& error) {
  return "data: " + error_body(error) + "\n\n";
}

std::string answer_body(const AnswerHead& head, std::span<const ChoicePart> choices,
                        const Usage& usage) {
  std::string out;
  append_head(out, head, head.chat ? "chat.completion" : "text_completion");
  out += ",\"choices\":[";
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += ',';
    append_choice(out, head, choices[i], true);
  }
  out += ']';
  if (!choices.empty() && choices.front().prompt_token_ids != nullptr) {
    out += ",\"prompt_token_ids\":";
    append_ids(out, *choices.front().prompt_token_ids);
  }
  out += ",\"usage\":";
  append_usage(out, usage);
  out += '}';
  return out;
}

}  // namespace bulkhead::orchestrator
