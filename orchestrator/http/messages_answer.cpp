// Writes answers of the Messages API: content blocks, whole or as server-sent events. A new block begins where the
// kind of an answer's parts changes, and each call is a block of its own.
#include <iterator>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "config/base/random.hpp"
#include "orchestrator/http/messages.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr FieldName kMessagesNames[] = {{"stop", "stop_sequences"},
                                        {"reasoning_budget", "thinking.budget_tokens"},
                                        {"response_format.json_schema", "output_config.format"},
                                        {"response_format", "output_config.format"},
                                        {".function.parameters", ".input_schema"},
                                        {".function", ""}};

// Nobody checks the signature here. But clients send thoughts back only with a signature that is not empty.
constexpr std::string_view kSignature = "unsigned";

void append_member(std::string& out, std::string_view name, std::string_view text) {
  fmt::format_to(std::back_inserter(out), "\"{}\":", name);
  append_json_string(out, text);
}

std::string error_object(const ApiError& error, std::string_view request_id) {
  std::string out = "{\"type\":\"error\",\"error\":{";
  append_member(out, "type", error.messages_type);
  out += ',';
  append_member(out, "message", error.message);
  out += "},";
  append_member(out, "request_id", request_id);
  return out + "}";
}

// No member of the types of Anthropic's clients is optional. The members that this server knows nothing about are null.
std::string usage_object(const Usage& usage) {
  return fmt::format(
      "{{\"input_tokens\":{},\"cache_creation\":null,\"cache_creation_input_tokens\":0,"
      "\"cache_read_input_tokens\":{},\"inference_geo\":null,\"output_tokens\":{},"
      "\"output_tokens_details\":{{\"thinking_tokens\":{}}},\"server_tool_use\":null,"
      "\"service_tier\":null,\"speed\":null}}",
      usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, usage.completion_tokens,
      usage.reasoning_tokens);
}

constexpr std::string_view kNoContainer = ",\"container\":null,\"stop_details\":null";

struct Block {
  ipc::PartKind kind = ipc::PartKind::kContent;  // kCall for a call with its arguments
  std::string text;                              // or a call's arguments
  std::string id, name;
};

bool is_whole(const Block& block) {
  return block.kind != ipc::PartKind::kCall || is_whole_object(block.text);
}

class MessagesDialect final : public Dialect {
 public:
  std::string new_id() const override { return fmt::format("msg_{:016x}", random_u64()); }

  void begin(const AnswerHead& head, const Usage& usage, std::string& events) override {
    head_ = head;
    event(events, "message_start", ",\"message\":" + message("[]", "null", usage));
  }

  void add(std::string_view text, std::span<const ipc::AnswerPart> parts,
           std::string& events) override {
    if (!text.empty()) piece(ipc::PartKind::kContent, text, events);
    for (const ipc::AnswerPart& part : parts) {
      if (part.kind == ipc::PartKind::kCall) {
        open({ipc::PartKind::kCall, {}, part.id, part.text}, events);
      } else {
        piece(part.kind, part.text, events);
      }
    }
  }

  ipc::FinishReason end(ipc::FinishReason reason, std::string_view stopped_by, const Usage& usage,
                        std::string& events) override {
    close(events, reason == ipc::FinishReason::kLength);
    usage_ = usage;
    bool calls = false;
    for (const Block& block : blocks_)
      calls |= block.kind == ipc::PartKind::kCall;
    stop_reason_ = reason == ipc::FinishReason::kLength ? "max_tokens"
                   : !stopped_by.empty()                ? "stop_sequence"
                   : calls                              ? "tool_use"
                                                        : "end_turn";
    if (stop_reason_ == "stop_sequence") {
      stop_sequence_.clear();
      append_json_string(stop_sequence_, stopped_by);
    }
    event(events, "message_delta",
          fmt::format(",\"delta\":{{\"stop_reason\":\"{}\",\"stop_sequence\":{}{}}},\"usage\":{}",
                      stop_reason_, stop_sequence_, kNoContainer, usage_object(usage)));
    event(events, "message_stop", "");
    return reason;
  }

  void fail(const ApiError& error, std::string& events) override {
    events += "event: error\ndata: " + error_object(error, head_.id) + "\n\n";
  }

  std::string whole() const override {
    std::string content = "[";
    for (const Block& block : blocks_) {
      const bool broken = !is_whole(block);
      // A limit cuts only the last block, and the stop reason says so.
      if (broken && &block == &blocks_.back() && stop_reason_ == "max_tokens") continue;
      if (content.size() > 1) content += ',';
      content += "{" + shape(block, broken ? as_invalid_json(block.text) : block.text) + "}";
    }
    return message(content + "]", "\"" + stop_reason_ + "\"", usage_);
  }

  std::string keep_alive() const override { return "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }

 private:
  static void event(std::string& events, std::string_view type, std::string_view members) {
    fmt::format_to(std::back_inserter(events), "event: {}\ndata: {{\"type\":\"{}\"{}}}\n\n", type,
                   type, members);
  }

  std::string message(std::string_view content, std::string_view stop_reason,
                      const Usage& usage) const {
    std::string out = "{";
    append_member(out, "id", head_.id);
    out += ",\"type\":\"message\",\"role\":\"assistant\",";
    append_member(out, "model", head_.model);
    fmt::format_to(std::back_inserter(out),
                   ",\"content\":{},\"diagnostics\":null,\"stop_reason\":{},\"stop_sequence\":{}{},"
                   "\"usage\":{}}}",
                   content, stop_reason, stop_sequence_, kNoContainer, usage_object(usage));
    return out;
  }

  // Returns a block's members as JSON. `text`: what the block holds; empty when the block begins.
  static std::string shape(const Block& block, std::string_view text) {
    std::string out;
    switch (block.kind) {
      case ipc::PartKind::kReasoning:
        out = "\"type\":\"thinking\",";
        append_member(out, "thinking", text);
        // When a block begins, both its text and its signature come later.
        return out + fmt::format(",\"signature\":\"{}\"", text.empty() ? "" : kSignature);
      case ipc::PartKind::kCall:
        out = "\"type\":\"tool_use\",";
        append_member(out, "id", block.id);
        out += ',';
        append_member(out, "name", block.name);
        return out + ",\"caller\":{\"type\":\"direct\"},\"input\":" +
               (text.empty() ? "{}" : std::string(text));
      case ipc::PartKind::kContent:
      // A block never has this kind, because a call's block contains the call's arguments.
      case ipc::PartKind::kArguments:
        out = "\"type\":\"text\",";
        append_member(out, "text", text);
        return out + ",\"citations\":null";
    }
    return out;
  }

  void open(Block block, std::string& events) {
    close(events);
    open_ = true;
    event(events, "content_block_start",
          fmt::format(",\"index\":{},\"content_block\":{{{}}}", blocks_.size(), shape(block, "")));
    blocks_.push_back(std::move(block));
  }

  // `cut`: by a limit, and the stop reason says so.
  void close(std::string& events, bool cut = false) {
    if (!std::exchange(open_, false)) return;
    const std::size_t index = blocks_.size() - 1;
    const Block& last = blocks_.back();
    // A call without any text of arguments was not finished; clients would take it for one without arguments.
    if (last.kind == ipc::PartKind::kCall && last.text.empty() && !cut)
      delta(events, "input_json_delta", "partial_json", as_invalid_json(""));
    if (last.kind == ipc::PartKind::kReasoning) {
      event(events, "content_block_delta",
            fmt::format(
                ",\"index\":{},\"delta\":{{\"type\":\"signature_delta\",\"signature\":\"{}\"}}",
                index, kSignature));
    }
    event(events, "content_block_stop", fmt::format(",\"index\":{}", index));
  }

  void piece(ipc::PartKind kind, std::string_view text, std::string& events) {
    const bool arguments = kind == ipc::PartKind::kArguments;
    const ipc::PartKind wanted = arguments ? ipc::PartKind::kCall : kind;
    if (!open_ || blocks_.back().kind != wanted) open({wanted, {}, {}, {}}, events);
    blocks_.back().text += text;
    const char* const type = arguments                           ? "input_json_delta"
                             : kind == ipc::PartKind::kReasoning ? "thinking_delta"
                                                                 : "text_delta";
    const char* const name = arguments                           ? "partial_json"
                             : kind == ipc::PartKind::kReasoning ? "thinking"
                                                                 : "text";
    delta(events, type, name, text);
  }

  void delta(std::string& events, const char* type, const char* name, std::string_view text) const {
    std::string members =
        fmt::format(",\"index\":{},\"delta\":{{\"type\":\"{}\",", blocks_.size() - 1, type);
    append_member(members, name, text);
    event(events, "content_block_delta", members + "}");
  }

  AnswerHead head_;
  Usage usage_;
  std::vector<Block> blocks_;
  bool open_ = false;  // the last block
  std::string stop_reason_;
  std::string stop_sequence_ = "null";  // JSON
};

}  // namespace

std::unique_ptr<Dialect> messages_dialect(std::string_view) {
  return std::make_unique<MessagesDialect>();
}

std::string counted_tokens_body(std::size_t tokens) {
  return fmt::format("{{\"input_tokens\":{}}}", tokens);
}

HttpResponse messages_refusal(const ApiError& error, std::string_view request_id) {
  HttpResponse response = to_response(error);
  response.body = error_object(with_own_names(error, kMessagesNames), request_id);
  return response;
}

}  // namespace bulkhead::orchestrator
