// Reads names of calls in all their forms, and calls that consist of a name and a JSON object.
#include "worker/model/answer/json_text.hpp"
#include "worker/model/answer/machine.hpp"

namespace bulkhead::model::answer {
namespace {

constexpr std::string_view kFunctionsDot = "functions.";
constexpr std::string_view kFunctionWord = "function";
constexpr std::string_view kCallWord = "call:";
constexpr std::string_view kFence = "```";
constexpr std::size_t kIndexDigits = 10;
constexpr std::size_t kLongestName = 512;  // with blanks

// Whether `text` is a beginning of `word`, or begins with it; in the latter case the word is removed.
enum class Prefix { kNo, kPartly, kRemoved };
Prefix remove_prefix(std::string_view& text, std::string_view word) {
  if (text.starts_with(word)) {
    text.remove_prefix(word.size());
    return Prefix::kRemoved;
  }
  return word.starts_with(text) ? Prefix::kPartly : Prefix::kNo;
}

// Says whether `text` is `:` and digits, or a beginning of that.
bool is_index(std::string_view text) {
  return text.size() <= 1 + kIndexDigits &&
         text.find_first_not_of("0123456789", 1) == std::string_view::npos;
}

}  // namespace

bool Machine::name_may_grow(std::string_view written) const {
  if (written.size() > kLongestName) return false;
  std::string_view text = trimmed(written);
  switch (family_.calls.name_form) {
    case NameForm::kPlain:
      break;
    case NameForm::kWithIndex: {
      if (remove_prefix(text, kFunctionsDot) == Prefix::kPartly) return true;
      const std::size_t colon = text.find(':');
      if (colon == std::string_view::npos) break;
      return tools_.find(text.substr(0, colon)) != nullptr && is_index(text.substr(colon));
    }
    case NameForm::kTyped:
      if (kFunctionWord.starts_with(text)) return true;
      break;
    case NameForm::kCallWord: {
      const Prefix call_word = remove_prefix(text, kCallWord);
      if (call_word != Prefix::kRemoved) return call_word == Prefix::kPartly;
      break;
    }
  }
  return tools_.fit(text) != NameFit::kNone;
}

bool Machine::resolve_name(CallName& name) const {
  std::string_view text = trimmed(name.written);
  switch (family_.calls.name_form) {
    case NameForm::kPlain:
    case NameForm::kTyped:
      break;
    case NameForm::kWithIndex:
      if (text.find(':') != std::string_view::npos) name.id = text;
      remove_prefix(text, kFunctionsDot);
      text = text.substr(0, text.find(':'));
      break;
    case NameForm::kCallWord:
      remove_prefix(text, kCallWord);
      break;
  }
  name.name = text;
  return tools_.find(text) != nullptr;
}

Routine Machine::read_name(CallName& name, const std::vector<std::string>& ends,
                           const std::vector<std::string>& stops) {
  Marks marks(ends.begin(), ends.end());
  marks.insert(marks.end(), stops.begin(), stops.end());
  if (!co_await blanks()) co_return false;
  for (;;) {
    const Scan next = scan(marks);
    if (next.found == Found::kUndecided) {
      co_await input();
    } else if (next.found == Found::kText) {
      // Goes byte by byte, so that the bytes read before a failure do not depend on the pieces.
      for (const char byte : next.text) {
        name.written += byte;
        if (!name_may_grow(name.written)) co_return false;
        take(1);
      }
    } else if (next.found == Found::kMark) {
      name.end = next.index;
      if (next.index < ends.size()) take(marks[next.index].size());
      co_return true;
    } else {
      take(next.text.size());  // the answer ended, perhaps within a mark
      co_return false;
    }
  }
}

Routine Machine::typed_name(CallName& name) {
  static const std::vector<std::string> stops = {"\n", "`", "{"};
  name = {};
  co_return co_await read_name(name, {}, stops);
}

// Gives false if this is not a call. If a limit cut the answer behind a whole name, the call has begun and the answer
// ended.
Routine Machine::call_name(CallName& name) {
  if (!family_.calls.id_close.empty()) {
    if (!co_await id_before_name(name)) co_return false;
  }
  bool read = co_await read_name(name, family_.calls.name_ends, family_.calls.name_stops);
  if (read && family_.calls.name_form == NameForm::kTyped &&
      trimmed(name.written) == kFunctionWord && tools_.find(kFunctionWord) == nullptr)
    read = co_await typed_name(name);
  // If nothing has to follow a name, it may be at the very end of the answer.
  const bool at_very_end = ended_ && at_end() && (cut() || family_.calls.name_ends.empty());
  if ((!read && !at_very_end) || !resolve_name(name)) co_return false;
  if (!read && family_.calls.id_close.empty()) name.id.clear();
  if (read && !family_.calls.id_open.empty() && name.end < family_.calls.name_ends.size() &&
      family_.calls.name_ends[name.end] == family_.calls.id_open) {
    if (!co_await read_id(name)) name.id.clear();
  }
  begin_call(name.name, name.id);
  co_return true;
}

// Reads a call's id, which ends at the mark id_close.
Routine Machine::id_before_name(CallName& name) {
  const Marks marks = {family_.calls.id_close};
  for (;;) {
    const Scan next = scan(marks);
    if (next.found == Found::kUndecided) {
      co_await input();
    } else if (next.found == Found::kText) {
      // Goes byte by byte, so that the bytes read before a failure do not depend on the pieces.
      for (const char byte : next.text) {
        if (name.id.size() == kLongestName) co_return false;
        name.id += byte;
        take(1);
      }
    } else {
      const bool whole = next.found == Found::kMark;
      take(whole ? marks[0].size() : next.text.size());
      name.id = trimmed(name.id);
      co_return whole;
    }
  }
}

Routine Machine::read_id(CallName& name) {
  const Marks marks = {family_.calls.name_ends.front()};
  for (;;) {
    const Scan next = scan(marks);
    if (next.found == Found::kText) {
      name.id += next.text;
      take(next.text.size());
    } else if (next.found == Found::kMark) {
      take(marks[0].size());
      name.id = trimmed(name.id);
      co_return true;
    } else if (next.found == Found::kUndecided) {
      co_await input();
    } else {
      take(next.text.size());
      co_return false;
    }
  }
}

// Skips ``` and the name of a language if they are here.
Routine Machine::skip_fence() {
  const Marks marks = {kFence};
  if (!co_await blanks()) co_return false;
  Scan next = scan(marks);
  while (next.found == Found::kUndecided) {
    co_await input();
    next = scan(marks);
  }
  if (next.found == Found::kPartial && cut()) take(next.text.size());  // it began the fence
  if (next.found != Found::kMark) co_return next.found == Found::kText;
  take(kFence.size());
  for (;;) {
    while (!at_end() && front() >= 'a' && front() <= 'z')
      take(1);
    if (!at_end()) co_return true;
    if (ended_) co_return false;
    co_await input();
  }
}

Routine Machine::json_arguments() {
  bool whole = co_await blanks();
  if (whole && front() == '{') whole = co_await json_value(Sink::kArguments, nullptr);
  if (whole || arguments_over()) end_call();
  co_return true;
}

Routine Machine::named_call() {
  CallName name;
  if (!co_await call_name(name)) co_return false;
  if (family_.calls.name_form == NameForm::kTyped) co_await skip_fence();
  co_return co_await json_arguments();
}

// Reads plain code to the end of the answer, for a tool that takes code.
Routine Machine::code_call() {
  const Tool* tool = nullptr;
  for (const char* name : {"python", "ipython", "code_interpreter"}) {
    if (tool == nullptr) tool = tools_.find(name);
  }
  if (tool == nullptr) co_return false;
  begin_call(tool->name, {});
  if (!co_await blanks()) {
    if (arguments_over()) end_call();
    co_return true;
  }
  if (front() == '{') co_return co_await json_arguments();
  const std::string key = tool->parameters.size() == 1 ? tool->parameters[0].first : "code";
  out_.arguments("{" + json_quoted(key) + ": \"");
  for (;;) {
    std::string piece;
    append_escaped(piece, rest());
    out_.arguments(piece);
    take(rest().size());
    if (ended_) break;
    co_await input();
  }
  if (!cut()) out_.arguments("\"}");
  co_return true;
}

}  // namespace bulkhead::model::answer
