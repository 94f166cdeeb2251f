// Reads harmony (gpt-oss): an answer is a sequence of messages, each with a header that names a channel and perhaps a
// recipient. Text of a header is never shown.
//
//   <|start|>assistant<|channel|>analysis<|message|>TEXT<|end|>                      reasoning
//   <|start|>assistant<|channel|>final<|message|>TEXT                                content
//   <|start|>assistant<|channel|>commentary to=functions.N <|constrain|>json<|message|>{...}
//
// The prompt ends within the first header.
#include <algorithm>

#include "worker/model/answer/json_text.hpp"
#include "worker/model/answer/machine.hpp"

namespace bulkhead::model::answer {
namespace {

constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kConstrain = "<|constrain|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kEnd = "<|end|>";
constexpr std::string_view kReturn = "<|return|>";
constexpr std::string_view kCall = "<|call|>";
constexpr std::string_view kMarks[] = {kStart, kChannel, kConstrain, kMessage,
                                       kEnd,   kReturn,  kCall};
constexpr std::size_t kLongestHeader = 4096;

// Returns the word that follows `sign` in a header, or nothing.
std::string_view word_behind(std::string_view header, std::string_view sign) {
  const std::size_t at = header.find(sign);
  if (at == std::string_view::npos) return {};
  header = header.substr(at + sign.size());
  const std::size_t begin = std::min(header.find_first_not_of(kBlanks), header.size());
  header = header.substr(begin);
  return header.substr(0, header.find_first_of("< \t\r\n"));
}

std::string_view recipient_of(std::string_view header) {
  constexpr std::string_view kFunctions = "functions.";
  std::string_view name = word_behind(header, "to=");
  if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
  return name;
}

// Says whether an answer with this beginning begins with the rest of a header.
bool begins_header(std::string_view text) {
  const auto fits = [&](std::string_view word) {
    return text.starts_with(word) || word.starts_with(text);
  };
  return fits("to=") || fits("assistant");
}

}  // namespace

Routine Machine::channels() {
  Header first{.text = prompt_header_, .begun = false, .raw = {}, .blanks = 0};
  // If the prompt ends within a message, its header is complete.
  const std::size_t message = prompt_header_.find(kMessage);
  if (message != std::string::npos) {
    out_.mark();
    co_await body(word_behind(prompt_header_.substr(0, message), kChannel) == "analysis");
    first = {};
  }
  for (Header next = first;; next = {.text = {}, .begun = true, .raw = {}, .blanks = 0}) {
    const bool whole = co_await header(next);
    const std::string name(recipient_of(next.text));
    const std::string_view unread = std::string_view(next.raw).substr(next.blanks);
    if (!whole && !next.begun && !begins_header(unread)) {
      out_.content(next.raw);  // there is no header at all: the model answers without channels
      co_await body(false);
    } else if (whole ? tools_.find(name) != nullptr : cut() && tools_.find(name) != nullptr) {
      begin_call(name, {});
      if (whole) co_await json_arguments();
      co_await body(false);
    } else if (whole) {
      co_await body(word_behind(next.text, kChannel) == "analysis");
    }
    if (ended_ && at_end()) co_return true;
  }
}

// Reads up to <|message|>. Gives false if the answer ended before it, or if this is not a header; then `raw` holds
// the text that was read.
Routine Machine::header(Header& header) {
  for (;;) {
    const Scan next = scan(kMarks);
    if (next.found == Found::kUndecided) {
      header_ = header.text;
      waits_ = Waits::kInHeader;
      co_await input();
    } else if (next.found == Found::kEnd) {
      co_return false;
    } else if (next.found != Found::kMark) {
      if (!header.begun) {
        const std::size_t blank = std::min(next.text.find_first_not_of(kBlanks), next.text.size());
        if (header.blanks == header.raw.size()) header.blanks += blank;
        header.raw += next.text;
        if (!begins_header(std::string_view(header.raw).substr(header.blanks))) {
          take(next.text.size());
          co_return false;
        }
      }
      if (header.text.size() < kLongestHeader) header.text += next.text;
      take(next.text.size());
    } else {
      const std::string_view mark = kMarks[next.index];
      take(mark.size());
      header.begun = true;
      if (mark == kMessage) {
        out_.mark();
        co_return true;
      }
      if (mark == kChannel || mark == kConstrain) {
        header.text += mark;
      } else {
        header.text.clear();
      }
    }
  }
}

// Reads a message's text, up to the mark that ends it or begins the next message.
Routine Machine::body(bool reasoning) {
  if (reasoning) out_.begin_reasoning();
  for (;;) {
    const Scan next = scan(kMarks);
    if (next.found == Found::kUndecided) {
      if (reasoning) waits_ = Waits::kInReasoning;
      co_await input();
    } else if (next.found == Found::kEnd) {
      co_return true;
    } else if (next.found != Found::kMark) {
      reasoning ? out_.reasoning(next.text) : out_.content(next.text);
      take(next.text.size());
    } else {
      const std::string_view mark = kMarks[next.index];
      const bool begins_next = mark == kStart || mark == kChannel;
      if (!begins_next) take(mark.size());
      if (begins_next || mark == kEnd || mark == kReturn || mark == kCall) {
        out_.mark();
        co_return true;
      }
    }
  }
}

}  // namespace bulkhead::model::answer
