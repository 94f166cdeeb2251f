#include "worker/model/template/chat.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/model/template/json.hpp"
#include "worker/model/template/probe.hpp"

namespace bulkhead::jinja {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw TemplateError(TemplateError::Kind::kRaised, message);
}

// A client can say these only as roles; they don't count as a user's text.
constexpr std::string_view kRoles[] = {"system",    "developer",    "user",  "assistant",
                                       "tool",      "function",     "model", "ipython",
                                       "documents", "tool_response"};

void check_messages(const Value* messages) {
  const List* list = messages == nullptr ? nullptr : messages->as_list();
  if (list == nullptr) refuse("messages is missing; give a list of messages");
  if (list->items.empty()) refuse("messages is empty; give at least one");
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    Dict* message = list->items[i].as_dict();
    if (message == nullptr) refuse(where + " is no object");
    Value* role = message->get("role");
    if (role == nullptr || role->as_text() == nullptr)
      refuse(where + ".role is missing; give one, as user");
    const std::string_view name = role->as_text()->view();
    const auto* known = std::find(std::begin(kRoles), std::end(kRoles), name);
    if (known != std::end(kRoles)) *role = Text(*known, Origin::kTemplate);
  }
}

bool empty_or_missing(const Value* value) {
  return value == nullptr || value->none() ||
         (value->as_list() != nullptr && value->as_list()->items.empty());
}

bool flag(const Value* value, bool otherwise, const char* name) {
  if (value == nullptr || value->none()) return otherwise;
  if (value->as_bool() == nullptr) refuse(std::string(name) + " has to be true or false");
  return *value->as_bool();
}

void define_thinking(Interpreter& run, bool thinks, const ThinkingSwitch* other) {
  run.define("enable_thinking", thinks);
  run.define("thinking", thinks);
  if (other == nullptr) return;
  if (other->on == nullptr) return run.define(other->name, thinks);
  run.define(other->name, plain(thinks ? other->on : other->off));
}

void define_reasoning(Interpreter& run, Dict& request, const Abilities& can) {
  const Efforts& efforts = can.efforts;
  const Value* thinking = request.get("enable_thinking");
  const bool* asked = thinking == nullptr ? nullptr : thinking->as_bool();
  if (asked != nullptr) define_thinking(run, *asked, can.other_switch);
  const bool effort_is_off = asked != nullptr && !*asked && can.other_switch != nullptr &&
                             can.other_switch->name == std::string_view("reasoning_effort");
  const Value* told = request.get("template_effort");
  if (told != nullptr && told->as_text() != nullptr && !effort_is_off)
    run.define("reasoning_effort", Text(efforts.nearest(told->as_text()->view()), Origin::kUser));
  const Value* effort = request.get("reasoning_effort");
  if (effort == nullptr || effort->as_text() == nullptr || effort_is_off) return;
  const std::string_view name = effort->as_text()->view();
  if (asked == nullptr) define_thinking(run, name != "none" && name != "minimal", can.other_switch);
  run.define("reasoning_effort", Text(efforts.nearest(name), Origin::kUser));
}

// Tells the template whether it shows the reasoning of earlier turns. Templates have several names for this.
void define_kept_reasoning(Interpreter& run, Dict& request) {
  const Value* keep = request.get("keep_reasoning");
  if (keep == nullptr || keep->as_bool() == nullptr) return;
  for (const char* name : {"preserve_thinking", "keep_past_thinking"})
    run.define(name, *keep->as_bool());
  for (const char* name : {"clear_thinking", "drop_thinking", "truncate_history_thinking"})
    run.define(name, !*keep->as_bool());
}

void define_others(Interpreter& run, Dict& request) {
  const Value* more = request.get("chat_template_kwargs");
  if (more == nullptr || more->none()) return;
  if (more->as_dict() == nullptr) refuse("chat_template_kwargs has to be an object");
  for (const Dict::Entry& entry : more->as_dict()->entries) {
    const std::string_view name = entry.key.as_text()->view();
    if (name == "messages" || name == "tools")
      refuse("chat_template_kwargs can't replace " + std::string(name) +
             "; give it in the request itself");
    run.define(name, entry.value);
  }
}

// ---- what the template would silently lose ----

struct Contents {
  bool system_before_result = false;  // a tool's result comes last
  bool system_before_answer = false;  // an answer comes last
  bool users = false;
  bool answers = false;
  bool tools = false;
  bool calls = false;
  bool several_calls = false;
  bool content_beside_calls = false;
  bool content_beside_old_calls = false;
  bool results = false;
};

Contents contents_of(const List& messages) {
  Contents found;
  bool system = false;
  for (const Value& each : messages.items) {
    Dict& message = *each.as_dict();
    const Value* role = message.get("role");
    system |= role->as_text()->view() == "system" || role->as_text()->view() == "developer";
    found.system_before_result = system && role->as_text()->view() == "tool";
    found.system_before_answer = system && role->as_text()->view() == "assistant";
    found.results |= role->as_text()->view() == "tool";
    found.users |= role->as_text()->view() == "user";
    const Value* calls = message.get("tool_calls");
    if (empty_or_missing(calls) || calls->as_list() == nullptr) {
      const bool answer = role->as_text()->view() == "assistant";
      found.answers |= answer;
      found.content_beside_old_calls |= answer && found.content_beside_calls;
      continue;
    }
    found.calls = true;
    found.several_calls |= calls->as_list()->items.size() > 1;
    const Value* content = message.get("content");
    found.content_beside_calls |= content != nullptr && truthy(*content);
  }
  return found;
}

std::vector<std::string> warnings_of(const Contents& found, const Abilities& can) {
  struct Row {
    bool lost;
    const char* text;
  };
  const Row rows[] = {
      {(found.system_before_result && !can.system_before_results) ||
           (found.system_before_answer && !can.system_before_answers),
       "the model's chat template leaves out the system message unless a user's message comes "
       "last"},
      {found.users && can.loses_users, "the model's chat template leaves out what users say"},
      {found.answers && can.loses_answers, "the model's chat template leaves out past answers"},
      {found.tools && !can.tools,
       "the model's chat template does not show the offered tools to the model"},
      {found.calls && !can.tool_calls, "the model's chat template leaves out past tool calls"},
      {found.results && !can.tool_results, "the model's chat template leaves out tool results"},
      {found.calls && can.tool_calls && !found.tools && !can.calls_without_tools,
       "the model's chat template leaves out past tool calls where no tools are offered"},
      {found.results && can.tool_results && !found.tools && !can.results_without_tools,
       "the model's chat template leaves out tool results where no tools are offered"},
      {found.content_beside_calls && can.tool_calls && !can.calls_beside_content,
       "the model's chat template leaves out past tool calls beside text"},
      {found.several_calls && can.tool_calls && !can.parallel_calls,
       "the model's chat template shows only one of several tool calls in a message"},
      {found.content_beside_calls && can.tool_calls && !can.content_beside_calls,
       "the model's chat template leaves out an assistant's text beside its tool calls"},
      {found.content_beside_old_calls && can.content_beside_calls && !can.content_beside_old_calls,
       "the model's chat template leaves out text beside tool calls that an answer has followed"},
  };
  std::vector<std::string> warnings;
  for (const Row& row : rows)
    if (row.lost) warnings.emplace_back(row.text);
  return warnings;
}

// ---- continue_final_message ----

std::string_view trimmed_left(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n\v\f"), text.size()));
  return text;
}
std::string_view trimmed(std::string_view text) {
  text = trimmed_left(text);
  const std::size_t last = text.find_last_not_of(" \t\r\n\v\f");
  return text.substr(0, last == text.npos ? 0 : last + 1);
}

// Returns where `body` stands last with an end that comes from the request: a template's own marks may contain it, too.
// If no place ends so, the last place counts. The search goes backwards and takes time in proportion to both lengths,
// however alike the texts are (Knuth, Morris and Pratt 1977).
std::size_t last_place(const ChatPrompt& prompt, std::string_view whole, std::string_view body) {
  const auto from_end = [body](std::size_t i) { return body[body.size() - 1 - i]; };
  // shorter[i]: the length of the longest text, of at most i bytes, with which the last i + 1 bytes of `body` both
  // begin and end.
  std::vector<std::uint32_t> shorter(body.size());
  for (std::uint32_t i = 1, same = 0; i < body.size(); ++i) {
    while (same > 0 && from_end(i) != from_end(same))
      same = shorter[same - 1];
    if (from_end(i) == from_end(same)) ++same;
    shorter[i] = same;
  }
  std::size_t piece = prompt.pieces.size(), piece_at = whole.size(), last = whole.npos;
  std::uint32_t matched = 0;
  for (std::size_t at = whole.size(); at-- > 0;) {
    while (matched > 0 && whole[at] != from_end(matched))
      matched = shorter[matched - 1];
    if (whole[at] == from_end(matched)) ++matched;
    if (matched < body.size()) continue;
    while (piece > 0 && piece_at >= at + body.size())
      piece_at -= prompt.pieces[--piece].text.size();
    if (last == whole.npos) last = at;
    if (prompt.pieces[piece].from_user) return at;
    matched = shorter[matched - 1];
  }
  return last;
}

// Cuts the prompt after the final message's text, so that the model continues it.
Status cut_after(ChatPrompt& prompt, std::string_view content) {
  const std::string whole = prompt.text();
  const std::string_view body = trimmed(content);
  const std::size_t at = body.empty() ? whole.npos : last_place(prompt, whole, body);
  if (at == whole.npos)
    return Error(ErrorCode::kInvalidArgument,
                 "continue_final_message needs a last message with text that the model's chat "
                 "template shows");
  const std::string_view with_end = trimmed_left(content);
  const bool keeps_end = whole.compare(at, with_end.size(), with_end) == 0;
  std::size_t left = at + (keeps_end ? with_end.size() : body.size());
  prompt.continued = whole.substr(at, left - at);
  for (std::size_t i = 0; i < prompt.pieces.size(); ++i) {
    std::string& text = prompt.pieces[i].text;
    if (text.size() < left) {
      left -= text.size();
      continue;
    }
    text.resize(left);
    prompt.pieces.resize(i + 1);
    break;
  }
  return {};
}

std::string text_of_last(const List& messages) {
  Dict& message = *messages.items.back().as_dict();
  const Value* content = message.get("content");
  if (content != nullptr && content->as_list() != nullptr && !content->as_list()->items.empty()) {
    Dict* part = content->as_list()->items.back().as_dict();
    content = part == nullptr ? nullptr : part->get("text");
  }
  return content == nullptr || content->as_text() == nullptr
             ? std::string()
             : std::string(content->as_text()->view());
}

// A template is probed some 40 times, and its source is not set yet then: a hostile template must not take its full
// time so often.
Limits limits_of(const std::string& source) {
  Limits limits;
  if (!source.empty()) return limits;
  limits.steps = 100'000;
  limits.memory_bytes = 4U << 20;
  return limits;
}

}  // namespace

std::string ChatPrompt::text() const {
  std::string all;
  for (const Piece& piece : pieces)
    all += piece.text;
  return all;
}

Result<Chat> Chat::load(std::string_view source, std::string_view bos, std::string_view eos) {
  Chat chat;
  chat.bos_ = bos;
  chat.eos_ = eos;
  BULKHEAD_TRY(chat.template_, Template::parse(source));
  chat.abilities_ = probe(chat, source);
  chat.source_ = source;  // set last: see limits_of
  return chat;
}

Result<ChatPrompt> Chat::render(const ChatRequest& request) const {
  Environment environment;
  environment.now = request.now;
  environment.extensions = !request.as_is;
  Contents found;
  bool continues = false;
  std::string last;
  const auto define = [&](Interpreter& run) {
    Value whole;
    try {
      whole = read_json(run, request.json, Origin::kUser);
    } catch (const TemplateError& error) {
      if (error.kind() != TemplateError::Kind::kFailed) throw;
      const std::string& why = error.message();
      refuse("the request is no JSON: " +
             why.substr(why.starts_with(kNoJson) ? kNoJson.size() : 0));
    }
    if (whole.as_dict() == nullptr) refuse("the request is no JSON object");
    Dict& given = *whole.as_dict();
    const Value* messages = given.get("messages");
    check_messages(messages);
    List& list = *messages->as_list();
    found = contents_of(list);
    if (!request.as_is) {
      adapt(run, list, abilities_.adaptations);
      fill_tools(run, given.get("tools"), abilities_.adaptations);
    }
    if (!request.as_is && abilities_.adaptations.has(Adaptation::kToolsInSystem))
      move_tools(run, list, given.get("tools"));
    continues = flag(given.get("continue_final_message"), false, "continue_final_message");
    last = continues ? text_of_last(list) : std::string();

    run.define("messages", *messages);
    if (!request.as_is && abilities_.adaptations.has(Adaptation::kConversationsGiven)) {
      List* conversations = run.heap().list();
      conversations->items.push_back(*messages);
      run.define("conversations", conversations);
    }
    const bool none = request.as_is || request.absent_as_none ||
                      abilities_.adaptations.has(Adaptation::kAbsentAsNone);
    for (const char* name : {"tools", "documents"}) {
      const Value* value = given.get(name);
      if (!empty_or_missing(value) || (request.as_is && value != nullptr))
        run.define(name, *value);
      else if (none)
        run.define(name, None{});
    }
    found.tools = !empty_or_missing(given.get("tools"));
    run.define("add_generation_prompt", !continues && flag(given.get("add_generation_prompt"), true,
                                                           "add_generation_prompt"));
    run.define("bos_token", Text(bos_, Origin::kTemplate));
    run.define("eos_token", Text(eos_, Origin::kTemplate));
    define_reasoning(run, given, request.as_is ? Abilities() : abilities_);
    define_kept_reasoning(run, given);
    define_others(run, given);
  };
  ChatPrompt prompt;
  BULKHEAD_TRY(prompt.pieces,
               template_.render(environment, request.json.size(), define, limits_of(source_)));
  if (continues) BULKHEAD_RETURN_IF_ERROR(cut_after(prompt, last));
  if (!request.as_is) prompt.warnings = warnings_of(found, abilities_);
  return prompt;
}

}  // namespace bulkhead::jinja
