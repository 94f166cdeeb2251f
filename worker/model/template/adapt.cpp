#include "worker/model/template/adapt.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "worker/model/template/json.hpp"
#include "worker/model/template/python.hpp"

namespace bulkhead::jinja {

Value typed_part(Run& run, const char* type, const Value& value) {
  Dict* made = run.heap().make<Dict>();
  made->set(plain("type"), plain(type));
  made->set(plain(type), value);
  return made;
}

namespace {

bool has_role(Dict& message, std::string_view role) {
  const Value* value = message.get("role");
  return value != nullptr && value->as_text() != nullptr && value->as_text()->view() == role;
}

List* calls_of(Dict& message) {
  const Value* calls = message.get("tool_calls");
  List* list = calls == nullptr ? nullptr : calls->as_list();
  return list == nullptr || list->items.empty() ? nullptr : list;
}

// The request is at fault here, not the template.
[[noreturn]] void wrong(std::string message) {
  throw TemplateError(TemplateError::Kind::kRaised, std::move(message));
}

std::string where(std::size_t message) {
  return "messages[" + std::to_string(message) + "]";
}

// Turns refusals into text, because templates know nothing else: parts of type refusal, and the member `refusal` of a
// message that has no content.
void refusals_as_text(Run& run, Dict& message) {
  if (!has_role(message, "assistant")) return;
  Value* content = message.get("content");
  if (content == nullptr || content->none()) {
    const Value* refusal = message.get("refusal");
    if (refusal != nullptr && refusal->as_text() != nullptr && calls_of(message) == nullptr)
      message.set(plain("content"), Value(*refusal));
    return;
  }
  List* parts = content->as_list();
  for (std::size_t i = 0; parts != nullptr && i < parts->items.size(); ++i) {
    run.tick();
    Dict* part = parts->items[i].as_dict();
    const Value* type = part == nullptr ? nullptr : part->get("type");
    const Value* refusal = part == nullptr ? nullptr : part->get("refusal");
    if (type == nullptr || type->as_text() == nullptr || type->as_text()->view() != "refusal" ||
        refusal == nullptr || refusal->as_text() == nullptr)
      continue;
    parts->items[i] = typed_part(run, "text", *refusal);
  }
}

// Returns the text of one of OpenAI's parts.
const Text& part_text(const Value& part, std::size_t message) {
  if (const Text* text = part.as_text()) return *text;
  if (Dict* dict = part.as_dict()) {
    const Value* text = dict->get("text");
    if (text != nullptr && text->as_text() != nullptr) return *text->as_text();
  }
  wrong(where(message) +
        ".content has a part that is no text, which this model's template can't take");
}

void join_parts(Run& run, Dict& message, std::size_t index) {
  Value* content = message.get("content");
  if (content == nullptr || content->as_list() == nullptr) return;
  TextBuilder joined;
  bool first = true;
  for (const Value& part : content->as_list()->items) {
    run.tick();
    if (!std::exchange(first, false)) joined.append("\n", Origin::kUser);
    joined.append(part_text(part, index));
  }
  *content = joined.take();
}

// Beside tool calls, replaces one kind of empty content by the other.
void set_empty_content(Dict& message, Adaptation how) {
  if (calls_of(message) == nullptr) return;
  Value* content = message.get("content");
  if (how == Adaptation::kNullContentAsEmpty) {
    if (content == nullptr || content->none()) message.set(plain("content"), Text());
    return;
  }
  const Text* text = content == nullptr ? nullptr : content->as_text();
  if (text != nullptr && text->empty()) *content = None{};
}

// Adds the members that clients leave out of calls and of their message. Removes an empty list of calls.
void complete_calls(Dict& message, bool with_type) {
  List* calls = calls_of(message);
  if (calls == nullptr) {
    (void)message.erase(plain("tool_calls"));
    return;
  }
  if (message.get("content") == nullptr) message.set(plain("content"), None{});
  for (const Value& item : calls->items) {
    Dict* call = item.as_dict();
    if (call == nullptr) continue;
    if (with_type && call->get("type") == nullptr) call->set(plain("type"), plain("function"));
    const Value* function = call->get("function");
    Dict* inner = function == nullptr ? call : function->as_dict();
    if (inner == nullptr) continue;
    const Value* arguments = inner->get("arguments");
    const bool none = arguments == nullptr || arguments->none() ||
                      (arguments->as_text() != nullptr && arguments->as_text()->empty());
    if (none) inner->set(plain("arguments"), plain("{}"));
  }
}

// Turns the arguments of each call into the object that their JSON describes, or (kArgumentsAsText) the reverse.
void convert_arguments(Run& run, Dict& message, std::size_t index, Adaptation how) {
  List* calls = calls_of(message);
  for (std::size_t i = 0; calls != nullptr && i < calls->items.size(); ++i) {
    Dict* call = calls->items[i].as_dict();
    const Value* function = call == nullptr ? nullptr : call->get("function");
    Dict* inner = function == nullptr ? call : function->as_dict();
    Value* arguments = inner == nullptr ? nullptr : inner->get("arguments");
    if (arguments == nullptr) continue;
    if (how == Adaptation::kArgumentsAsText && arguments->as_dict() != nullptr) {
      TextBuilder json;
      write_json(run, *arguments, default_json_style(), json);
      *arguments = json.take();
      continue;
    }
    const Text* text = arguments->as_text();
    if (text == nullptr || how == Adaptation::kArgumentsAsText) continue;
    try {
      *arguments = read_json(run, text->view(), Origin::kUser);
    } catch (const TemplateError& error) {
      if (error.kind() != TemplateError::Kind::kFailed) throw;
      wrong(where(index) + ".tool_calls[" + std::to_string(i) +
            "].function.arguments is no JSON, and this model's template needs its parts; send an "
            "object, such as {} in place of one that was cut");
    }
  }
}

void set_null_answer(Dict& message) {
  const Value* content = message.get("content");
  if (!has_role(message, "assistant") || calls_of(message) != nullptr) return;
  if (content == nullptr || content->none()) message.set(plain("content"), Text());
}

// Gives each id a name, in order of appearance.
class CallIds {
 public:
  explicit CallIds(Run& run) : known_(run.heap().make<Dict>()) {}

  void rename(Dict& dict, std::string_view key) {
    Value* id = dict.get(key);
    if (id == nullptr || id->as_text() == nullptr || fits(id->as_text()->view())) return;
    if (const Value* known = known_->find(*id)) {
      *id = *known;
      return;
    }
    char name[16];
    std::snprintf(name, sizeof name, "call%05zu", known_->entries.size() + 1);
    known_->set(*id, plain(name));
    *id = plain(name);
  }

 private:
  static bool fits(std::string_view id) {
    return id.size() == 9 && std::all_of(id.begin(), id.end(), [](char c) {
             return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
           });
  }
  Dict* known_;
};

void rename_ids(CallIds& ids, Dict& message) {
  if (List* calls = calls_of(message))
    for (const Value& call : calls->items)
      if (call.as_dict() != nullptr) ids.rename(*call.as_dict(), "id");
  ids.rename(message, "tool_call_id");
}

// Gives each call the id that the model itself writes. An id that has this form already stays, because the model wrote
// it; a number is one more than the largest before it.
class NumberedIds {
 public:
  explicit NumberedIds(Run& run) : known_(run.heap().make<Dict>()) {}

  void rename(Dict& message) {
    List* calls = calls_of(message);
    for (std::size_t i = 0; calls != nullptr && i < calls->items.size(); ++i) {
      if (Dict* call = calls->items[i].as_dict()) rename_call(*call);
    }
    Value* id = message.get("tool_call_id");
    if (id == nullptr || id->as_text() == nullptr) return;
    if (const Value* known = known_->find(*id)) *id = *known;
  }

 private:
  void rename_call(Dict& call) {
    const Value* function = call.get("function");
    Dict* inner = function == nullptr ? &call : function->as_dict();
    const Value* name = inner == nullptr ? nullptr : inner->get("name");
    if (name == nullptr || name->as_text() == nullptr) return;
    const std::string begin = "functions." + std::string(name->as_text()->view()) + ":";
    const Value* given = call.get("id");
    const Text* id = given == nullptr ? nullptr : given->as_text();
    if (id != nullptr && id->view().starts_with(begin)) {
      const std::string_view digits = id->view().substr(begin.size());
      std::size_t number = 0;
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (error == std::errc() && end == digits.data() + digits.size() && number < kMostNumber) {
        next_ = std::max(next_, number + 1);
        known_->set(*given, *given);
        return;
      }
    }
    const Value made = Text(begin + std::to_string(next_++), Origin::kUser);
    if (id != nullptr) known_->set(*given, made);
    call.set(plain("id"), made);
  }

  static constexpr std::size_t kMostNumber = 1'000'000;
  Dict* known_;
  std::size_t next_ = 0;
};

bool has_only_text(Dict& message) {
  for (const char* name : {"reasoning_content", "thinking"}) {
    const Value* thought = message.get(name);
    if (thought != nullptr && !thought->none()) return false;
  }
  const Value* content = message.get("content");
  const List* parts = content == nullptr ? nullptr : content->as_list();
  for (std::size_t i = 0; parts != nullptr && i < parts->items.size(); ++i) {
    Dict* part = parts->items[i].as_dict();
    if (part != nullptr && part->get("text") == nullptr) return false;
  }
  return calls_of(message) == nullptr;
}

bool is_system(Dict& message) {
  return has_role(message, "system") || has_role(message, "developer");
}

bool both_of_system(Dict& a, Dict& b) {
  return is_system(a) && is_system(b);
}

bool both_of_a_speaker(Dict& a, Dict& b) {
  return (has_role(a, "user") && has_role(b, "user")) ||
         (has_role(a, "assistant") && has_role(b, "assistant"));
}

bool question_behind_result(Dict& a, Dict& b) {
  return has_role(a, "tool") && has_role(b, "user");
}

// Makes neighbours that are alike one message, with an empty line between their texts.
void join_neighbours(Run& run, List& messages, bool alike(Dict&, Dict&)) {
  CountedVector<Value> kept;
  for (std::size_t i = 0; i < messages.items.size(); ++i) {
    Dict& message = *messages.items[i].as_dict();
    Dict* before = kept.empty() ? nullptr : kept.back().as_dict();
    if (before == nullptr || !alike(*before, message) || !has_only_text(*before) ||
        !has_only_text(message)) {
      kept.push_back(messages.items[i]);
      continue;
    }
    TextBuilder joined;
    for (Dict* each : {before, &message}) {
      join_parts(run, *each, i);
      const Value* content = each->get("content");
      const Text* text = content == nullptr ? nullptr : content->as_text();
      if (each == &message) joined.append("\n\n", Origin::kUser);
      if (text != nullptr) joined.append(*text);
    }
    before->set(plain("content"), joined.take());
  }
  messages.items = std::move(kept);
}

void later_system_as_user(List& messages) {
  bool begun = false;
  for (const Value& item : messages.items) {
    Dict& message = *item.as_dict();
    if (!is_system(message)) begun = true;
    if (begun && is_system(message)) message.set(plain("role"), plain("user"));
  }
}

void merge_system(Run& run, List& messages) {
  CountedVector<Value> kept;
  TextBuilder pending;
  bool waits = false;
  const auto flush_into = [&](Value& content) {
    pending.append("\n", Origin::kUser);
    if (const Text* text = content.as_text()) pending.append(*text);
    content = pending.take();
    waits = false;
  };
  for (std::size_t i = 0; i < messages.items.size(); ++i) {
    Dict& message = *messages.items[i].as_dict();
    join_parts(run, message, i);
    Value* content = message.get("content");
    const bool text = content != nullptr && (content->as_text() != nullptr || content->none());
    if (has_role(message, "system") && text) {
      if (waits) pending.append("\n", Origin::kUser);
      if (content->as_text() != nullptr) pending.append(*content->as_text());
      waits = true;
      continue;
    }
    if (waits && text) flush_into(*content);
    kept.push_back(messages.items[i]);
  }
  if (waits) {  // nothing follows it, so the user says it
    Dict* message = run.heap().make<Dict>();
    message->set(plain("role"), plain("user"));
    message->set(plain("content"), pending.take());
    kept.emplace_back(message);
  }
  messages.items = std::move(kept);
}

void contents_as_parts(Run& run, const List& messages) {
  for (const Value& item : messages.items) {
    Value* content = item.as_dict()->get("content");
    if (content == nullptr || content->as_text() == nullptr) continue;
    List* parts = run.heap().list();
    parts->items.push_back(typed_part(run, "text", *content));
    *content = parts;
  }
}

// Returns a list of what stands under `function` in each of the items.
Value functions_of(Run& run, const List& items, std::initializer_list<const char*> members) {
  List* functions = run.heap().list();
  for (const Value& item : items.items) {
    Dict* dict = item.as_dict();
    const Value* inner = dict == nullptr ? nullptr : dict->get("function");
    Dict* function = inner == nullptr ? dict : inner->as_dict();
    if (function == nullptr) continue;
    Dict* kept = run.heap().make<Dict>();
    for (const char* name : members)
      if (const Value* value = function->get(name)) kept->set(plain(name), *value);
    functions->items.emplace_back(kept);
  }
  return functions;
}

void calls_into_text(Run& run, Dict& message, std::size_t index) {
  const List* calls = calls_of(message);
  if (calls == nullptr) return;
  convert_arguments(run, message, index, Adaptation::kArgumentsAsObject);
  TextBuilder text;
  const Value* content = message.get("content");
  if (content != nullptr && content->as_text() != nullptr) text.append(*content->as_text());
  text.append("<|tool_call|>", Origin::kTemplate);
  write_json(run, functions_of(run, *calls, {"name", "arguments"}), default_json_style(), text);
  text.append("<|/tool_call|>", Origin::kTemplate);
  message.set(plain("content"), text.take());
}

}  // namespace

const char* to_string(Adaptation adaptation) {
  switch (adaptation) {
    case Adaptation::kDeveloperAsSystem:
      return "developer_as_system";
    case Adaptation::kSystemPartsJoined:
      return "system_parts_joined";
    case Adaptation::kContentPartsJoined:
      return "content_parts_joined";
    case Adaptation::kResultPartsJoined:
      return "result_parts_joined";
    case Adaptation::kNullContentAsEmpty:
      return "null_content_as_empty";
    case Adaptation::kNullAnswerAsEmpty:
      return "null_answer_as_empty";
    case Adaptation::kEmptyContentAsNull:
      return "empty_content_as_null";
    case Adaptation::kArgumentsAsObject:
      return "arguments_as_object";
    case Adaptation::kArgumentsAsText:
      return "arguments_as_text";
    case Adaptation::kToolCallIds9Alnum:
      return "tool_call_ids_9_alnum";
    case Adaptation::kToolCallIdsNumbered:
      return "tool_call_ids_numbered";
    case Adaptation::kReasoningAsThinking:
      return "reasoning_as_thinking";
    case Adaptation::kReasoningAsThinkingPart:
      return "reasoning_as_thinking_part";
    case Adaptation::kCallTypeGiven:
      return "call_type_given";
    case Adaptation::kLaterSystemAsUser:
      return "later_system_as_user";
    case Adaptation::kSystemsJoined:
      return "systems_joined";
    case Adaptation::kNeighboursJoined:
      return "neighbours_joined";
    case Adaptation::kQuestionIntoResult:
      return "question_into_result";
    case Adaptation::kToolDescriptionAsEmpty:
      return "tool_description_as_empty";
    case Adaptation::kToolParametersAsEmpty:
      return "tool_parameters_as_empty";
    case Adaptation::kToolPropertiesAsEmpty:
      return "tool_properties_as_empty";
    case Adaptation::kSystemMergedIntoUser:
      return "system_merged_into_user";
    case Adaptation::kContentAsParts:
      return "content_as_parts";
    case Adaptation::kToolsInSystem:
      return "tools_in_system";
    case Adaptation::kAbsentAsNone:
      return "absent_as_none";
    case Adaptation::kContentIntoThinking:
      return "content_into_thinking";
    case Adaptation::kConversationsGiven:
      return "conversations_given";
  }
  return "";
}

std::vector<std::string> Adaptations::names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kAdaptations; ++i)
    if (has(static_cast<Adaptation>(i))) names.emplace_back(to_string(static_cast<Adaptation>(i)));
  return names;
}

void adapt(Run& run, List& messages, const Adaptations& needed) {
  CallIds ids(run);
  NumberedIds numbered(run);
  for (std::size_t i = 0; i < messages.items.size(); ++i) {
    Dict& message = *messages.items[i].as_dict();
    refusals_as_text(run, message);
    if (has_role(message, "assistant")) reasoning_by_one_name(message);
    if (needed.has(Adaptation::kDeveloperAsSystem) && has_role(message, "developer"))
      message.set(plain("role"), plain("system"));
    if (needed.has(Adaptation::kContentPartsJoined) ||
        (needed.has(Adaptation::kResultPartsJoined) && has_role(message, "tool")) ||
        (needed.has(Adaptation::kSystemPartsJoined) &&
         (has_role(message, "system") || has_role(message, "developer"))))
      join_parts(run, message, i);
    complete_calls(message, needed.has(Adaptation::kCallTypeGiven));
    if (needed.has(Adaptation::kNullAnswerAsEmpty)) set_null_answer(message);
    for (const Adaptation how : {Adaptation::kNullContentAsEmpty, Adaptation::kEmptyContentAsNull})
      if (needed.has(how)) set_empty_content(message, how);
    for (const Adaptation how : {Adaptation::kArgumentsAsObject, Adaptation::kArgumentsAsText})
      if (needed.has(how)) convert_arguments(run, message, i, how);
    if (needed.has(Adaptation::kToolCallIds9Alnum)) rename_ids(ids, message);
    if (needed.has(Adaptation::kToolCallIdsNumbered)) numbered.rename(message);
    for (const Adaptation how :
         {Adaptation::kReasoningAsThinking, Adaptation::kReasoningAsThinkingPart})
      if (needed.has(how)) move_reasoning(run, message, how);
    if (needed.has(Adaptation::kContentIntoThinking)) content_into_thinking(message);
  }
  if (needed.has(Adaptation::kLaterSystemAsUser)) later_system_as_user(messages);
  if (needed.has(Adaptation::kSystemsJoined)) join_neighbours(run, messages, both_of_system);
  if (needed.has(Adaptation::kSystemMergedIntoUser)) merge_system(run, messages);
  if (needed.has(Adaptation::kNeighboursJoined)) join_neighbours(run, messages, both_of_a_speaker);
  if (needed.has(Adaptation::kQuestionIntoResult))
    join_neighbours(run, messages, question_behind_result);
  if (needed.has(Adaptation::kContentAsParts)) contents_as_parts(run, messages);
}

void move_tools(Run& run, List& messages, const Value* tools) {
  for (std::size_t i = 0; i < messages.items.size(); ++i)
    calls_into_text(run, *messages.items[i].as_dict(), i);
  const List* offered = tools == nullptr ? nullptr : tools->as_list();
  if (offered == nullptr || offered->items.empty()) return;
  Dict* system = messages.items[0].as_dict();
  if (!has_role(*system, "system")) {
    system = run.heap().make<Dict>();
    system->set(plain("role"), plain("system"));
    system->set(plain("content"), Text());
    messages.items.insert(messages.items.begin(), Value(system));
  }
  TextBuilder text;
  write_json(run, functions_of(run, *offered, {"name", "description", "parameters"}),
             default_json_style(), text);
  system->set(plain("tools"), text.take());
}

}  // namespace bulkhead::jinja
