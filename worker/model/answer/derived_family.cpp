#include "worker/model/answer/derived_family.hpp"

#include <algorithm>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

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

std::optional<std::string> render(const jinja::Chat& chat, const Json& assistant,
                                  bool as_is = false) {
  // The offered tool has another name than the call, so that the call's name occurs only in the call.
  const Json parameters = {
      {"type", "object"},
      {"properties", {{"key", {{"type", "string"}, {"description", "A key."}}}}}};
  const Json tool = {
      {"type", "function"},
      {"function", {{"name", "Qf7tool"}, {"description", "A tool."}, {"parameters", parameters}}}};
  const Json user = {{"role", "user"}, {"content", "Qf7ask"}};
  Json whole = {{"add_generation_prompt", false}};
  whole["messages"] = Json::array({user, assistant});
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
std::optional<Span> derive_call(std::string_view text, Calls& calls) {
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
  if (!span || text[span->begin] != '{') return std::nullopt;
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
                                       CallSyntax syntax) {
  const std::size_t name = text.find(kOtherName, std::min(first_end, text.size()));
  if (name == std::string_view::npos || syntax == CallSyntax::kNamed)
    return name == std::string_view::npos ? std::nullopt : std::optional(name);
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
    const std::string_view opening = trimmed(between.substr(at));
    if (opening.empty() || !open.ends_with(opening) || !close.starts_with(closing)) continue;
    const bool clean = std::string_view("<[(|").find(between[at]) != std::string_view::npos;
    if (!best || clean) best = at;
    if (clean) break;
  }
  if (!best) return;
  const std::string_view closing = trimmed(between.substr(0, *best));
  const std::string_view opening = trimmed(between.substr(*best));
  const std::string_view section = trimmed(open.substr(0, open.size() - opening.size()));
  if (section.empty()) return;
  calls.section = section;
  calls.opens = {std::string(opening)};
  calls.closers.clear();
  for (const std::string_view mark : {closing, trimmed(close.substr(closing.size()))}) {
    if (!mark.empty()) calls.closers.emplace_back(mark);
  }
}

// `arguments`: in the form that the template gets.
std::optional<Calls> derive_calls(const jinja::Chat& chat, std::string_view said,
                                  const Json& arguments) {
  Json message = {{"role", "assistant"}, {"content", nullptr}};
  message["tool_calls"] = Json::array({call_of(kName, kId, arguments)});
  const bool as_is = arguments.is_string();  // otherwise the parser may turn a text into an object
  const auto one = render(chat, message, as_is);
  if (!one) return std::nullopt;
  Calls calls;
  const std::string_view text = difference(*one, said);
  const auto span = derive_call(text, calls);
  if (!span) return std::nullopt;
  const std::string_view open = trimmed(text.substr(0, span->begin));
  const std::string_view close = trimmed(text.substr(span->end));
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
  message["tool_calls"].push_back(call_of(kOtherName, kOtherId, arguments));
  const auto two = render(chat, message, as_is);
  const bool listed = calls.syntax == CallSyntax::kJsonList ||
                      calls.syntax == CallSyntax::kKeyedList || calls.syntax == CallSyntax::kPython;
  if (!two || listed) return calls;
  const std::string_view both = difference(*two, said);
  const auto next = second_call(both, span->end, calls.syntax);
  if (!next) return calls;
  const std::string_view between_calls = trimmed(both.substr(span->end, *next - span->end));
  calls.adjacent = between_calls.empty() && calls.syntax == CallSyntax::kJson;
  split_section(between_calls, open, close, calls);
  return calls;
}

std::optional<Reasoning> derive_reasoning(const jinja::Chat& chat, std::string_view said) {
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
  if (!calls && !reasoning) return std::nullopt;
  return family;
}

const Family& family_of_chat(const jinja::Chat& chat) {
  const Family& known = family_of_template(chat.source());
  if (known.calls.syntax != CallSyntax::kNone) return known;
  std::optional<Family> derived = derive_family(chat, known);
  if (!derived) return known;
  static std::mutex mutex;
  static std::list<Family> kept;  // constraints and parsers refer to families
  const std::lock_guard lock(mutex);
  return kept.emplace_back(std::move(*derived));
}

}  // namespace bulkhead::model::answer
