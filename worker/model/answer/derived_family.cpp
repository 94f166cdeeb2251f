#include "worker/model/answer/derived_family.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "worker/model/answer/derived_tags.hpp"
#include "worker/model/answer/json_text.hpp"

namespace bulkhead::model::answer {
namespace {

using Json = nlohmann::ordered_json;

// Words that no template contains. The common part of two renderings ends where these words begin or end, so their
// first and last letters differ from each other's and from those of marks.
const std::string kName = "Qf7call";
const std::string kOtherName = "Qg8call";
const std::string kKey = "qf7key";
const std::string kValue = "Qf7value";
const std::string kId = "Qf7abc123";
const std::string kOtherId = "Qg8abc123";
const std::string kSaid = "Zq5sayz";
const std::string kThought = "Wq6thinkw";

constexpr std::size_t kLongestMark = 128;

Json arguments_object() {
  Json arguments = Json::object();
  arguments[kKey] = kValue;
  return arguments;
}

Json call_of(const std::string& name, const std::string& id, const Json& arguments) {
  Json function = {{"name", name}};
  function["arguments"] = arguments;
  return {{"id", id}, {"type", "function"}, {"function", std::move(function)}};
}

// Returns an assistant's message with these calls.
Json message_with(const Json& calls) {
  Json message = {{"role", "assistant"}, {"content", nullptr}};
  message["tool_calls"] = calls;
  return message;
}

enum class Turn : std::uint8_t { kLast, kBeforeQuestion };

// `assistant`: null for the prompt of an answer to the question.
std::optional<std::string> render(const jinja::Chat& chat, const Json& assistant,
                                  bool as_is = false, Turn turn = Turn::kLast) {
  // The offered tool has another name than the call, so that the call's name occurs only in the call.
  const Json parameters = {
      {"type", "object"},
      {"properties", {{"key", {{"type", "string"}, {"description", "A key."}}}}}};
  const Json tool = {
      {"type", "function"},
      {"function", {{"name", "Qf7tool"}, {"description", "A tool."}, {"parameters", parameters}}}};
  const Json user = {{"role", "user"}, {"content", "Qf7ask"}};
  Json whole = {{"add_generation_prompt", assistant.is_null()}};
  whole["messages"] = Json::array({user});
  if (!assistant.is_null()) whole["messages"].push_back(assistant);
  if (turn == Turn::kBeforeQuestion) whole["messages"].push_back(user);
  whole["tools"] = Json::array({tool});
  const std::string text = whole.dump();
  jinja::ChatRequest request;
  request.json = text;
  request.as_is = as_is;
  request.now.tm_year = 126;
  request.now.tm_mday = 1;
  request.now.tm_wday = 4;
  const Result<jinja::ChatPrompt> prompt = chat.render(request);
  if (!prompt.ok()) return std::nullopt;
  return prompt->text();
}

std::size_t common_start(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(end - a.begin());
}

// Returns the part of `text` that differs from `other`, between their common start and end. If two marks begin with
// the same letters (<think> and <tool_call>), the part begins with the mark.
std::string_view difference(std::string_view text, std::string_view other) {
  std::size_t start = common_start(text, other);
  const std::size_t mark = text.substr(0, start).find_last_of("<[>] \n");
  if (mark != std::string_view::npos && (text[mark] == '<' || text[mark] == '[')) start = mark;
  text.remove_prefix(start);
  other.remove_prefix(start);
  const auto [end, unused] =
      std::mismatch(text.rbegin(), text.rend(), other.rbegin(), other.rend());
  text.remove_suffix(static_cast<std::size_t>(end - text.rbegin()));
  return text;
}

std::string_view without_blanks_before(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kBlanks), text.size()));
}

// Says whether the opening mark of a call stands directly before its name. Blanks between them belong to the mark:
// `[to NAME]`.
bool begins_with_name(const Calls& calls) {
  return calls.syntax == CallSyntax::kNamed || calls.syntax == CallSyntax::kTagged;
}

// A piece of a text.
struct Span {
  std::size_t begin = 0, end = 0;
};

// Returns the outermost JSON value that begins between `from` and `word` and contains `word`.
std::optional<Span> json_around(std::string_view text, std::size_t from, std::size_t word) {
  for (std::size_t at = from; at <= word; ++at) {
    if (text[at] != '{' && text[at] != '[') continue;
    JsonEnd end;
    const std::size_t bytes = end.take(text.substr(at));
    if (end.done() && at + bytes > word && is_json(text.substr(at, bytes)))
      return Span{at, at + bytes};
  }
  return std::nullopt;
}

// Says whether the value is an object with the call's argument, or its text.
bool are_arguments(const Json& value) {
  if (value.is_string())
    return Json::parse(value.get<std::string>(), nullptr, false) == arguments_object();
  return value == arguments_object();
}

bool read_keys(const Json& call, JsonKeys& keys) {
  if (!call.is_object()) return false;
  std::string name, arguments, id;
  bool id_last = false;
  for (const auto& [key, value] : call.items()) {
    if (value == kName) name = key;
    if (are_arguments(value)) arguments = key;
    if (value == kId) id = key;
    id_last = value == kId;
  }
  if (name.empty() || arguments.empty()) return false;
  keys = {.name = name, .arguments = {arguments}, .id = {}, .id_last = false};
  // Nobody reads an id between the two; the answer gets an id of its own.
  if (!id.empty() && (id_last || call.begin().key() == id)) {
    keys.id = id;
    keys.id_last = id_last;
  }
  return true;
}

// Derives the form of a call that is JSON and holds its name.
bool derive_json(std::string_view value, Calls& calls) {
  const Json json = Json::parse(value, nullptr, false);
  if (json.is_object()) {
    calls.syntax = CallSyntax::kJson;
    return read_keys(json, calls.keys);
  }
  if (!json.is_array() || json.size() != 1 || !json[0].is_object()) return false;
  calls.syntax = CallSyntax::kJsonList;
  if (read_keys(json[0], calls.keys)) return true;
  calls.syntax = CallSyntax::kKeyedList;
  return json[0].size() == 1 && json[0].contains(kName) && are_arguments(json[0][kName]);
}

// Returns the text of NAME(KEY=VALUE), with the brackets of a list if it is in one.
std::optional<Span> python_call(std::string_view text, std::size_t name) {
  const std::string begin = kName + "(" + kKey + "=";
  if (!text.substr(name).starts_with(begin)) return std::nullopt;
  const std::size_t value = text.find(kValue, name), close = text.find(')', name);
  if (value == std::string_view::npos || close == std::string_view::npos || close < value)
    return std::nullopt;
  const std::size_t open = text.find_last_not_of(kBlanks, name - 1);
  const std::size_t behind = text.find_first_not_of(kBlanks, close + 1);
  const bool listed = name > 0 && open != std::string_view::npos && text[open] == '[' &&
                      behind != std::string_view::npos && text[behind] == ']';
  return listed ? Span{open, behind + 1} : Span{name, close + 1};
}

// Finds where a call's own text begins and ends within the marks.
std::optional<Span> derive_call(std::string_view text, const TagProbe& probe, Calls& calls) {
  const std::size_t name = text.find(kName);
  if (name == std::string_view::npos || text.find(kName, name + 1) != std::string_view::npos)
    return std::nullopt;
  if (const auto span = json_around(text, 0, name)) {
    if (!derive_json(text.substr(span->begin, span->end - span->begin), calls)) return std::nullopt;
    return span;
  }
  if (const auto span = python_call(text, name)) {
    calls.syntax = CallSyntax::kPython;
    calls.name_ends = {"("};
    return span;
  }
  // The form is NAME, a text, and the arguments.
  const std::size_t behind = name + kName.size(), value = text.find(kValue, behind);
  if (value == std::string_view::npos) return std::nullopt;
  const auto span = json_around(text, behind, value);
  if (!span) {
    const auto end = derive_tags(text, probe, calls);
    return end ? std::optional(Span{name, *end}) : std::nullopt;
  }
  if (text[span->begin] != '{') return std::nullopt;
  const std::string_view arguments = text.substr(span->begin, span->end - span->begin);
  if (!are_arguments(Json::parse(arguments, nullptr, false))) return std::nullopt;
  calls.syntax = CallSyntax::kNamed;
  calls.name_ends = {std::string(trimmed(text.substr(behind, span->begin - behind)))};
  if (calls.name_ends[0].empty()) calls.name_stops = {"{"};
  return Span{name, span->end};
}

// Returns where the second call's own text begins in a text with two calls; `first_end` is where the first one's
// ends.
std::optional<std::size_t> second_call(std::string_view text, std::size_t first_end,
                                       const Calls& calls) {
  const std::size_t name = text.find(kOtherName, std::min(first_end, text.size()));
  if (name == std::string_view::npos) return std::nullopt;
  if (begins_with_name(calls)) return name;
  const auto span = json_around(text, first_end, name);
  return span ? std::optional(span->begin) : std::nullopt;
}

// The text between two calls is the closing mark of the first and the opening mark of the second. The rest of the
// text before the first call and behind the last one is the section's marks.
void split_section(std::string_view between, std::string_view open, std::string_view close,
                   Calls& calls) {
  std::optional<std::size_t> best;
  for (std::size_t at = 0; at < between.size(); ++at) {
    const std::string_view closing = trimmed(between.substr(0, at));
    const std::string_view opening = without_blanks_before(between.substr(at));
    if (opening.empty() || !open.ends_with(opening) || !close.starts_with(closing)) continue;
    const bool clean = std::string_view("<[(|").find(between[at]) != std::string_view::npos;
    if (!best || clean) best = at;
    if (clean) break;
  }
  if (!best) return;
  const std::string_view closing = trimmed(between.substr(0, *best));
  const std::string_view opening = without_blanks_before(between.substr(*best));
  const std::string_view section = trimmed(open.substr(0, open.size() - opening.size()));
  if (section.empty()) return;
  calls.section = section;
  calls.opens = {std::string(opening)};
  calls.closers.clear();
  for (const std::string_view mark : {closing, trimmed(close.substr(closing.size()))}) {
    if (!mark.empty()) calls.closers.emplace_back(mark);
  }
}

// Templates may end the turn of the last message behind a call, but not behind what was said. That end is no mark of
// calls, because it ends the answer.
std::string_view without_end_of_turn(const jinja::Chat& chat, std::string_view close) {
  const auto later =
      render(chat, {{"role", "assistant"}, {"content", kSaid}}, false, Turn::kBeforeQuestion);
  const std::size_t said = later ? later->find(kSaid) : std::string::npos;
  if (said == std::string::npos) return close;
  const std::string_view behind = std::string_view(*later).substr(said + kSaid.size());
  for (std::size_t at = 0; at < close.size(); ++at) {
    const bool may_be_mark = close[at] == '<' || close[at] == '[';
    if (may_be_mark && behind.starts_with(close.substr(at))) return trimmed(close.substr(0, at));
  }
  return close;
}

// Finds the marks around several calls in `both`, a text with two of them. `first`: the first one's own text.
void derive_section(std::string_view both, Span first, std::string_view open,
                    std::string_view close, Calls& calls) {
  if (calls.syntax == CallSyntax::kJsonList || calls.syntax == CallSyntax::kKeyedList ||
      calls.syntax == CallSyntax::kPython)
    return;
  const auto next = second_call(both, first.end, calls);
  if (!next) return;
  std::string_view between = without_blanks_before(both.substr(first.end, *next - first.end));
  if (!begins_with_name(calls)) between = trimmed(between);
  calls.adjacent = between.empty() && calls.syntax == CallSyntax::kJson;
  split_section(between, open, close, calls);
}

// `arguments`: in the form that the template gets.
std::optional<Calls> derive_calls(const jinja::Chat& chat, std::string_view said,
                                  const Json& arguments) {
  const bool as_is = arguments.is_string();  // otherwise the parser may turn a text into an object
  Json list = Json::array({call_of(kName, kId, arguments)});
  const auto one = render(chat, message_with(list), as_is);
  if (!one) return std::nullopt;
  Calls calls;
  const std::string_view text = difference(*one, said);
  const TagProbe probe{
      .name = kName, .key = kKey, .value = kValue, .render = [&](const Json& other) {
        return render(chat, message_with(Json::array({call_of(kName, kId, other)})), as_is);
      }};
  const auto span = derive_call(text, probe, calls);
  if (!span) return std::nullopt;
  std::string_view open = without_blanks_before(text.substr(0, span->begin));
  if (!begins_with_name(calls)) open = trimmed(open);
  const std::string_view close = without_end_of_turn(chat, trimmed(text.substr(span->end)));
  std::string_view between;
  if (!calls.name_ends.empty()) between = calls.name_ends[0];
  for (const std::string_view mark : {open, between, close}) {
    // A mark that contains this call's id does not fit another call.
    if (mark.size() > kLongestMark || mark.find(kId) != std::string_view::npos) return std::nullopt;
  }
  if (open.empty()) {
    // Without any mark, only an object or a list can be distinguished from content.
    const bool listed = text[span->begin] == '[' && calls.syntax != CallSyntax::kKeyedList;
    if ((calls.syntax != CallSyntax::kJson && !listed) || !close.empty()) return std::nullopt;
    calls.bare_json = true;
    return calls;
  }
  calls.opens = {std::string(open)};
  if (!close.empty()) calls.closers = {std::string(close)};
  list.push_back(call_of(kOtherName, kOtherId, arguments));
  if (const auto two = render(chat, message_with(list), as_is))
    derive_section(difference(*two, said), *span, open, close, calls);
  if (calls.syntax == CallSyntax::kTagged && !close_tagged_call(calls)) return std::nullopt;
  return calls;
}

// Says whether this is a tag whose name has a word for reasoning.
bool names_reasoning(std::string_view tag) {
  if (!tag.starts_with('<') || !tag.ends_with('>') || tag.find('>') + 1 != tag.size()) return false;
  return std::ranges::any_of(std::initializer_list<std::string_view>{"think", "thought", "reason"},
                             [&](std::string_view word) { return tag.find(word) != tag.npos; });
}

// Templates may write an empty block of reasoning before what was said: <think:x></think:x>.
std::optional<Reasoning> empty_reasoning(std::string_view said) {
  const std::string_view before = trimmed(said.substr(0, said.find(kSaid)));
  const std::size_t close = before.rfind("</");
  if (close == std::string_view::npos) return std::nullopt;
  const std::string_view closing = before.substr(close);
  const std::string open = "<" + std::string(closing.substr(2));
  if (!names_reasoning(open) || !trimmed(before.substr(0, close)).ends_with(open))
    return std::nullopt;
  return Reasoning{.open = open, .close = std::string(closing)};
}

// The prompt of an answer may open the reasoning: <thought>. Such a template often shows no past reasoning, but its
// text has the closing mark, because it cuts past answers there.
std::optional<Reasoning> opened_reasoning(const jinja::Chat& chat) {
  const auto prompt = render(chat, nullptr);
  if (!prompt) return std::nullopt;
  const std::string_view text = trimmed(*prompt);
  const std::size_t open = text.rfind('<');
  if (open == std::string_view::npos || !names_reasoning(text.substr(open))) return std::nullopt;
  const std::string close = "</" + std::string(text.substr(open + 1));
  if (chat.source().find(close) == std::string::npos) return std::nullopt;
  return Reasoning{.open = std::string(text.substr(open)), .close = close};
}

std::optional<Reasoning> derive_reasoning(const jinja::Chat& chat, std::string_view said) {
  if (auto empty = empty_reasoning(said)) return empty;
  if (auto opened = opened_reasoning(chat)) return opened;
  const auto both =
      render(chat, {{"role", "assistant"}, {"content", kSaid}, {"reasoning_content", kThought}});
  if (!both) return std::nullopt;
  const std::string_view text = std::string_view(*both).substr(common_start(*both, said));
  const std::size_t thought = text.find(kThought), content = text.find(kSaid);
  if (thought == std::string_view::npos || content == std::string_view::npos || content < thought)
    return std::nullopt;
  const std::size_t behind = thought + kThought.size();
  const std::string_view open = trimmed(text.substr(0, thought));
  const std::string_view close = trimmed(text.substr(behind, content - behind));
  if (open.empty() || close.empty()) return std::nullopt;
  return Reasoning{.open = std::string(open), .close = std::string(close)};
}

// A template may enclose what is said in tags: <response>...</response>. A tag with which the prompt of an answer ends
// encloses the whole turn.
std::optional<Response> derive_response(const jinja::Chat& chat, std::string_view said) {
  const std::size_t at = said.find(kSaid);
  const std::string_view before = trimmed(said.substr(0, at));
  const std::size_t begin = before.rfind('<');
  if (begin == std::string_view::npos || !before.ends_with('>')) return std::nullopt;
  const std::string open(before.substr(begin));
  const std::string close = "</" + open.substr(1);
  const auto prompt = render(chat, nullptr);
  if (!prompt || trimmed(*prompt).ends_with(open)) return std::nullopt;
  if (!trimmed(said.substr(at + kSaid.size())).starts_with(close)) return std::nullopt;
  return Response{.open = open, .close = close};
}

}  // namespace

std::optional<Family> derive_family(const jinja::Chat& chat, const Family& known) {
  const auto said = render(chat, {{"role", "assistant"}, {"content", kSaid}});
  if (!said || said->find(kSaid) == std::string::npos) return std::nullopt;
  Family family = known;
  family.name = "derived";
  // A template may write an object as JSON, or write a text unchanged.
  auto calls = derive_calls(chat, *said, arguments_object());
  if (!calls) calls = derive_calls(chat, *said, arguments_object().dump());
  if (calls) family.calls = *calls;
  std::optional<Reasoning> reasoning;
  if (known.reasoning.open.empty()) reasoning = derive_reasoning(chat, *said);
  if (reasoning) family.reasoning = *reasoning;
  std::optional<Response> response;
  if (known.response.open.empty()) response = derive_response(chat, *said);
  if (response) family.response = *response;
  if (!calls && !reasoning && !response) return std::nullopt;
  return family;
}

namespace {

// Says whether a template writes tags, but other ones than the row. DeepSeek V4.1 writes
// `<｜DSML｜ invoke` with a space, and each release of Hunyuan has an ending of its own in its marks.
bool has_other_tags(const jinja::Chat& chat, const Family& row) {
  if (row.calls.syntax != CallSyntax::kTagged) return false;
  const auto one =
      render(chat, message_with(Json::array({call_of(kName, kId, arguments_object())})));
  if (!one) return false;
  const std::string_view before = std::string_view(*one).substr(0, one->find(kName));
  return before.size() != one->size() &&
         std::ranges::none_of(row.calls.opens, [&](const std::string& open) {
           return before.ends_with(open) || trimmed(before).ends_with(open);
         });
}

}  // namespace

const Family& family_of_chat(const jinja::Chat& chat) {
  const Family& known = family_of_template(chat.source());
  const bool in_table = known.calls.syntax != CallSyntax::kNone;
  if (in_table && !has_other_tags(chat, known)) return known;
  std::optional<Family> derived = derive_family(chat, known);
  if (!derived || (in_table && derived->calls.syntax != CallSyntax::kTagged)) return known;
  static std::mutex mutex;
  static std::list<Family> kept;  // constraints and parsers refer to families
  const std::lock_guard lock(mutex);
  return kept.emplace_back(std::move(*derived));
}

}  // namespace bulkhead::model::answer
