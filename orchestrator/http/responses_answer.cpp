// Writes answers of the Responses API: output items, whole or as server-sent events. A new item begins where the kind
// of an answer's parts changes, and each call is an item of its own.
#include <ctime>
#include <iterator>
#include <map>
#include <ranges>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "config/base/random.hpp"
#include "orchestrator/http/choice.hpp"
#include "orchestrator/http/responses.hpp"
#include "orchestrator/http/responses_echo.hpp"
#include "orchestrator/http/stored_items.hpp"

namespace bulkhead::orchestrator {

namespace {

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

struct Item {
  ipc::PartKind kind = ipc::PartKind::kContent;     // kCall for a call with its arguments
  std::string id;                                   // the item's
  std::string text;                                 // or a call's arguments
  std::string call_id = {}, name = {}, space = {};  // `space`: the tool's namespace, if it has one
};

constexpr FieldName kResponsesNames[] = {{"messages", "input"},
                                         {"max_tokens", "max_output_tokens"},
                                         {"reasoning_effort", "reasoning.effort"},
                                         {"verbosity", "text.verbosity"},
                                         {"response_format.json_schema", "text.format"},
                                         {"response_format", "text.format"},
                                         {".function", ""}};

class ResponsesDialect final : public Dialect {
 public:
  explicit ResponsesDialect(std::string_view body) : echo_(responses_echo(body)) {
    find_namespaces(echo_.tools);
  }

  std::string new_id() const override { return fmt::format("resp_{:016x}", random_u64()); }

  void note_sampling(const ipc::Sampling& sampling) override { sampling_ = sampling; }

  void begin(const AnswerHead& head, const Usage&, std::string& events) override {
    head_ = head;
    for (const std::string& name : std::exchange(echo_.open_samplers, {}))
      echo_.members += fmt::format(",\"{}\":{}", name,
                                   name == "top_p" ? sampling_.top_p : sampling_.temperature);
    for (const char* type : {"response.created", "response.in_progress"})
      event(events, type, ",\"response\":" + response("in_progress"));
  }

  void add(std::string_view text, std::span<const ipc::AnswerPart> parts,
           std::string& events) override {
    if (!text.empty()) piece(ipc::PartKind::kContent, text, events);
    for (const ipc::AnswerPart& part : parts) {
      if (part.kind == ipc::PartKind::kCall) {
        open(ipc::PartKind::kCall, part.id, part.text, events);
      } else {
        piece(part.kind, part.text, events);
      }
    }
  }

  ipc::FinishReason end(ipc::FinishReason reason, std::string_view, const Usage& usage,
                        std::string& events) override {
    for (const Item& each : std::views::reverse(items_)) {
      if (each.kind != ipc::PartKind::kCall) continue;
      reason = told_reason(reason, each.text);
      break;
    }
    cut_ = reason == ipc::FinishReason::kLength;
    if (!cut_) completed_at_ = std::to_string(std::time(nullptr));
    usage_ = usage;
    close(cut_ ? "incomplete" : "completed", events);
    over_ = true;
    for (const Item& each : items_) {
      if (echo_.store) stored_items().keep(each.id, item(each, "completed"));
    }
    event(events, cut_ ? "response.incomplete" : "response.completed", ",\"response\":" + whole());
    return reason;
  }

  // OpenAI's reference has the members in the event itself. But its servers send them within `error`, and only there
  // its clients look for them.
  void fail(const ApiError& error, std::string& events) override {
    const std::string facts = fmt::format(
        "\"code\":{},\"message\":{}", json_string(error.code.empty() ? "server_error" : error.code),
        json_string(error.message));
    event(events, "error",
          fmt::format(",{},\"param\":null,\"error\":{{\"type\":{},{},\"param\":null}}", facts,
                      json_string(error.type), facts));
    error_ = "{" + facts + "}";
    event(events, "response.failed", ",\"response\":" + response("failed"));
  }

  std::string whole() const override { return response(cut_ ? "incomplete" : "completed"); }

 private:
  // Notes the namespace and the name that the client uses for a tool. `tools` is valid JSON.
  void find_namespaces(std::string_view tools) {
    if (tools.find("namespace") == tools.npos) return;
    const auto text_of = [](const nlohmann::json& object, const char* name) {
      const auto found = object.is_object() ? object.find(name) : object.end();
      return found == object.end() || !found->is_string() ? "" : found->get<std::string>();
    };
    for (const nlohmann::json& tool : nlohmann::json::parse(tools)) {
      if (text_of(tool, "type") != "namespace" || !tool.contains("tools")) continue;
      for (const nlohmann::json& inner : tool["tools"]) {
        std::string space = text_of(tool, "name"), name = text_of(inner, "name");
        in_namespaces_.try_emplace(name_in_namespace(space, name), space, name);
      }
    }
  }

  void event(std::string& events, std::string_view type, const std::string& members) {
    fmt::format_to(std::back_inserter(events),
                   "event: {}\ndata: {{\"type\":\"{}\",\"sequence_number\":{}{}}}\n\n", type, type,
                   sequence_++, members);
  }
  // Returns the place of the last item.
  std::string place() const {
    return fmt::format(",\"item_id\":\"{}\",\"output_index\":{}", items_.back().id,
                       items_.size() - 1);
  }

  std::string response(std::string_view status) const {
    std::string output;
    for (std::size_t i = 0; i < items_.size() && over_; ++i)
      output +=
          (i == 0 ? "" : ",") + item(items_[i], i + 1 == items_.size() ? status : "completed");
    std::string usage = "null";
    if (over_) {
      usage = fmt::format(
          "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{},"
          "\"cache_write_tokens\":0}},\"output_tokens\":{},"
          "\"output_tokens_details\":{{\"reasoning_tokens\":{}}},\"total_tokens\":{}}}",
          usage_.prompt_tokens, usage_.cached_tokens, usage_.completion_tokens,
          usage_.reasoning_tokens, usage_.prompt_tokens + usage_.completion_tokens);
    }
    return fmt::format(
        "{{\"id\":\"{}\",\"object\":\"response\",\"created_at\":{},\"completed_at\":{},"
        "\"status\":\"{}\",\"error\":{},"
        "\"incomplete_details\":{},\"model\":{},\"output\":[{}],\"previous_response_id\":null,"
        "\"store\":{},\"usage\":{}{}}}",
        head_.id, head_.created, completed_at_, status, error_,
        status == "incomplete" ? "{\"reason\":\"max_output_tokens\"}" : "null",
        json_string(head_.model), output, echo_.store, usage, echo_.members);
  }

  static std::string text_part(const Item& item) {
    if (item.kind == ipc::PartKind::kReasoning)
      return "{\"type\":\"reasoning_text\",\"text\":" + json_string(item.text) + "}";
    return "{\"type\":\"output_text\",\"text\":" + json_string(item.text) +
           ",\"annotations\":[],\"logprobs\":[]}";
  }

  static std::string item(const Item& item, std::string_view status) {
    const std::string content =
        status == "in_progress" ? std::string("[]") : "[" + text_part(item) + "]";
    switch (item.kind) {
      case ipc::PartKind::kReasoning:
        return fmt::format(
            "{{\"type\":\"reasoning\",\"id\":\"{}\",\"summary\":[],\"content\":{},\"status\":\"{}"
            "\"}}",
            item.id, content, status);
      case ipc::PartKind::kCall:
        return fmt::format(
            "{{\"type\":\"function_call\",\"id\":\"{}\",\"call_id\":{},{}\"name\":{},\"arguments\":"
            "{}"
            ",\"status\":\"{}\"}}",
            item.id, json_string(item.call_id),
            item.space.empty() ? "" : "\"namespace\":" + json_string(item.space) + ",",
            json_string(item.name), json_string(item.text), status);
      case ipc::PartKind::kContent:
      // An item never has this kind, because a call's item contains the call's arguments.
      case ipc::PartKind::kArguments:
        return fmt::format(
            "{{\"type\":\"message\",\"id\":\"{}\",\"role\":\"assistant\",\"status\":\"{}\","
            "\"content\":{}}}",
            item.id, status, content);
    }
    return {};
  }

  void open(ipc::PartKind kind, std::string call_id, std::string name, std::string& events) {
    close("completed", events);
    const char* const prefix = kind == ipc::PartKind::kReasoning ? "rs"
                               : kind == ipc::PartKind::kCall    ? "fc"
                                                                 : "msg";
    const std::string own = head_.id.substr(head_.id.find('_') + 1);
    items_.push_back({kind,
                      fmt::format("{}_{}{}", prefix, own, items_.size()),
                      {},
                      std::move(call_id),
                      std::move(name)});
    if (const auto known = in_namespaces_.find(items_.back().name); known != in_namespaces_.end())
      std::tie(items_.back().space, items_.back().name) = known->second;
    open_ = true;
    event(events, "response.output_item.added",
          fmt::format(",\"output_index\":{},\"item\":{}", items_.size() - 1,
                      item(items_.back(), "in_progress")));
    if (kind == ipc::PartKind::kCall) return;
    event(events, "response.content_part.added",
          place() + ",\"content_index\":0,\"part\":" + text_part(items_.back()));
  }

  void close(std::string_view status, std::string& events) {
    if (!std::exchange(open_, false)) return;
    const Item& last = items_.back();
    if (last.kind == ipc::PartKind::kCall) {
      event(events, "response.function_call_arguments.done",
            place() + ",\"name\":" + json_string(last.name) +
                ",\"arguments\":" + json_string(last.text));
    } else {
      const bool thought = last.kind == ipc::PartKind::kReasoning;
      event(events, thought ? "response.reasoning_text.done" : "response.output_text.done",
            place() + ",\"content_index\":0,\"text\":" + json_string(last.text) +
                (thought ? "" : ",\"logprobs\":[]"));
      event(events, "response.content_part.done",
            place() + ",\"content_index\":0,\"part\":" + text_part(last));
    }
    event(events, "response.output_item.done",
          fmt::format(",\"output_index\":{},\"item\":{}", items_.size() - 1, item(last, status)));
  }

  void piece(ipc::PartKind kind, std::string_view text, std::string& events) {
    const bool arguments = kind == ipc::PartKind::kArguments;
    const ipc::PartKind wanted = arguments ? ipc::PartKind::kCall : kind;
    if (!open_ || items_.back().kind != wanted) open(wanted, {}, {}, events);
    items_.back().text += text;
    if (arguments) {
      event(events, "response.function_call_arguments.delta",
            place() + ",\"delta\":" + json_string(text));
      return;
    }
    const bool thought = kind == ipc::PartKind::kReasoning;
    event(events, thought ? "response.reasoning_text.delta" : "response.output_text.delta",
          place() + ",\"content_index\":0,\"delta\":" + json_string(text) +
              (thought ? "" : ",\"logprobs\":[]"));
  }

  AnswerHead head_;
  Usage usage_;
  ResponsesEcho echo_;  // its open samplers join its members in begin()
  ipc::Sampling sampling_;
  std::vector<Item> items_;
  // The namespaces and names of tools, by the names that the model gets.
  std::map<std::string, std::pair<std::string, std::string>> in_namespaces_;
  bool open_ = false;  // the last item
  bool cut_ = false;
  bool over_ = false;
  std::string error_ = "null";         // JSON
  std::string completed_at_ = "null";  // JSON
  std::uint64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<Dialect> responses_dialect(std::string_view body) {
  return std::make_unique<ResponsesDialect>(body);
}

std::string input_tokens_body(std::size_t tokens) {
  return fmt::format(R"({{"object":"response.input_tokens","input_tokens":{}}})", tokens);
}

HttpResponse responses_refusal(const ApiError& error, std::string_view) {
  return to_response(with_own_names(error, kResponsesNames));
}

}  // namespace bulkhead::orchestrator
