// Reads calls in JSON: an object with a name and arguments, alone or in a list, or an object whose key is the name.
#include <algorithm>

#include "worker/model/answer/json_text.hpp"
#include "worker/model/answer/machine.hpp"

namespace bulkhead::model::answer {
namespace {

bool is_one_of(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

// Models write a list where their template shows single calls, and the reverse, so both are read.
Routine Machine::json_block() {
  const bool more = co_await blanks();
  if (!more) co_return false;
  if (front() == '[') co_return co_await json_list(false, false);
  if (front() != '{') co_return false;
  co_return co_await json_calls(family_.calls.bare_json);
}

// Reads a call, and those that follow it if the family writes them without a mark between them.
Routine Machine::json_calls(bool strict) {
  bool read = co_await json_call(strict);
  while (read && family_.calls.adjacent) {
    const bool more = co_await blanks();
    if (!more) break;
    if (front() != '{') break;
    begin_attempt();
    read = co_await json_call(strict);
  }
  co_return read;
}

Routine Machine::json_call(bool strict) {
  JsonCall call{.strict = strict,
                .inner = false,
                .started = false,
                .named = false,
                .name = {},
                .id = {},
                .held = {}};
  const bool complete = co_await json_members(call);
  end_json_call(call, complete);
  co_return call.named;
}

// Reads an object's members; gives false if the answer ended before its end, or the syntax is wrong.
Routine Machine::json_members(JsonCall& call) {
  take(1);
  while (co_await blanks()) {
    if (front() == '}') {
      take(1);
      co_return true;
    }
    if (front() == ',') {
      take(1);
      continue;
    }
    if (front() != '"') break;
    std::string key;
    const Expect expect = call.strict && !call.named ? Expect::kCallKey : Expect::kAnything;
    if (!co_await json_string(key, expect)) break;
    if (!co_await next_is(':')) break;
    take(1);
    if (!co_await blanks()) break;
    if (!co_await json_member(call, key)) break;
  }
  co_return false;
}

Routine Machine::json_member(JsonCall& call, const std::string& key) {
  const JsonKeys& keys = family_.calls.keys;
  if (key == keys.name && front() == '"') {
    std::string name;
    const bool closed = co_await json_string(name, Expect::kToolName);
    // If a limit cut the answer right behind a whole name, that is a call.
    if (tools_.find(name) == nullptr || (!closed && !cut())) co_return false;
    call.name = name;
    call.named = true;
    if (!closed) co_return false;
  } else if (key == kFunctionKey && front() == '{' && !call.named && !call.inner) {
    call.inner = true;
    co_return co_await json_members(call);
  } else if (!keys.id.empty() && key == keys.id && front() == '"') {
    std::string id;
    if (!co_await json_string(id, Expect::kAnything)) co_return false;
    call.id = id;
  } else if (is_one_of(keys.arguments, key)) {
    if (call.started && front() == '{') co_return co_await json_value(Sink::kArguments, nullptr);
    const bool whole = co_await json_value(Sink::kHeld, &call.held);
    if (call.started) out_.arguments(arguments_of(call.held));
    if (!whole) co_return false;
  } else if (call.strict && !call.named) {
    std::string word;
    const bool type = key == "type" && front() == '"';
    if (!type && key != "id") co_return false;
    Routine value =
        type ? json_string(word, Expect::kFunctionWord) : json_value(Sink::kDropped, nullptr);
    if (!co_await value) co_return false;
    if (type && word != "function") co_return false;
  } else if (!co_await json_value(Sink::kDropped, nullptr)) {
    co_return false;
  }
  if (call.named && !call.started && (!keys.id_last || !call.id.empty())) begin_json_call(call);
  co_return true;
}

void Machine::begin_json_call(JsonCall& call) {
  begin_call(call.name, call.id);
  call.started = true;
  out_.arguments(arguments_of(call.held));
}

void Machine::end_json_call(JsonCall& call, bool complete) {
  if (!call.named) return;
  if (!call.started) begin_json_call(call);
  if (complete || arguments_over()) end_call();
}

// Says whether a call whose end is missing has all its arguments. An answer that ends before the first of them must not
// look like a call without arguments, unless the tool has no parameters.
bool Machine::arguments_over() const {
  return !cut() && (out_.has_arguments() || needs_no_arguments() || !ended_ || !at_end());
}

bool Machine::needs_no_arguments() const {
  return !out_.has_arguments() && tool_ != nullptr && tool_->parameters.empty();
}

Routine Machine::json_list(bool keyed, bool strict) {
  const bool more = co_await blanks();
  if (!more) co_return false;
  if (front() == '{' && !keyed) co_return co_await json_call(strict);
  if (front() != '[') co_return false;
  take(1);
  bool any = false;
  while (co_await blanks()) {
    const char c = front();
    if (c == ']') take(1);
    if (c == ',' && any) {
      take(1);
      continue;
    }
    if (c != '{') break;
    if (any) begin_attempt();
    Routine item = keyed ? keyed_call() : json_call(strict);
    if (!co_await item) co_return false;
    any = true;
  }
  co_return any;
}

Routine Machine::keyed_call() {
  take(1);
  bool any = false;
  while (co_await blanks()) {
    const char c = front();
    if (c == '}') take(1);
    if (c == ',' && any) {
      take(1);
      continue;
    }
    if (c != '"') break;
    if (any) begin_attempt();
    std::string name;
    const bool closed = co_await json_string(name, Expect::kToolName);
    if (tools_.find(name) == nullptr || (!closed && !cut())) co_return false;
    begin_call(name, {});
    any = true;
    if (!closed) break;
    if (!co_await next_is(':')) break;
    take(1);
    if (!co_await blanks()) break;
    bool whole = false;
    if (front() == '{') {
      whole = co_await json_value(Sink::kArguments, nullptr);
    } else {
      std::string held;
      whole = co_await json_value(Sink::kHeld, &held);
      out_.arguments(arguments_of(held));
    }
    if (!whole && !arguments_over()) break;
    end_call();
  }
  if (any && arguments_over()) end_call();
  co_return any;
}

bool Machine::may_be(Expect expect, std::string_view text) const {
  const JsonKeys& keys = family_.calls.keys;
  const auto begins = [&](std::string_view word) { return word.starts_with(text); };
  switch (expect) {
    case Expect::kAnything:
      return true;
    case Expect::kCallKey:
      return begins(keys.name) || begins("type") || begins("id") || begins(kFunctionKey) ||
             std::any_of(keys.arguments.begin(), keys.arguments.end(), begins);
    case Expect::kToolName:
      return tools_.fit(text) != NameFit::kNone || text.find('\\') != std::string_view::npos;
    case Expect::kFunctionWord:
      return begins("function");
  }
  return false;
}

Routine Machine::json_string(std::string& text, Expect expect) {
  take(1);
  bool escaped = false;
  for (;;) {
    const std::string_view piece = rest();
    std::size_t bytes = 0;
    bool closed = false;
    for (; bytes < piece.size() && !closed; ++bytes) {
      closed = !escaped && piece[bytes] == '"';
      escaped = !escaped && piece[bytes] == '\\';
    }
    const std::string_view inner = piece.substr(0, closed ? bytes - 1 : bytes);
    if (expect == Expect::kAnything) {
      text += inner;
      take(inner.size());
    } else {
      // Goes byte by byte, so that the bytes read before a failure do not depend on the pieces.
      for (const char byte : inner) {
        text += byte;
        if (!may_be(expect, text)) co_return false;
        take(1);
      }
    }
    if (closed) take(1);
    if (closed) {
      std::string inside;
      if (!unescape(text, inside)) co_return false;
      text = inside;
      co_return true;
    }
    if (ended_) co_return false;
    co_await input();
  }
}

Routine Machine::json_value(Sink sink, std::string* held) {
  JsonEnd end;
  for (;;) {
    const std::size_t bytes = end.take(rest());
    switch (sink) {
      case Sink::kArguments:
        out_.arguments(rest().substr(0, bytes));
        break;
      case Sink::kHeld:
        *held += rest().substr(0, bytes);
        break;
      case Sink::kDropped:
        break;
    }
    take(bytes);
    if (end.done()) co_return true;
    if (ended_) co_return end.done_at_end();
    co_await input();
  }
}

}  // namespace bulkhead::model::answer
