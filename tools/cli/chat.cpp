// `bulkhead chat` and `bulkhead complete`: the two subcommands that generate text.
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "tools/cli/commands.hpp"
#include "tools/cli/line_reader.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

constexpr const char* kChatHelp =
    "  /reset          forget the conversation\n"
    "  /system TEXT    forget it and start with TEXT as the system message (none: without one)\n"
    "  /quit           end (so does Ctrl-D)\n"
    "  Ctrl-C          stop an answer; at the prompt, drop the line\n"
    "You edit lines as in a shell. The arrow keys bring earlier messages back.\n"
    "Text that is pasted at once is one message.\n";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t'))
    text.remove_suffix(1);
  return text;
}

// Shows an answer as it comes. At a terminal, control characters of the model become escapes, so that no answer can
// control the terminal, and the model's reasoning stands before the answer, dimmed; NO_COLOR=1 puts it between words.
// Elsewhere the output is the answer alone, byte for byte.
class Shown {
 public:
  bool any() const { return any_; }
  bool reader_gone() const { return reader_gone_; }

  void text(std::string_view piece) {
    end_reasoning();
    any_ = true;
    show(piece);
  }
  void reasoning(std::string_view piece) {
    if (!terminal_) return;
    if (!std::exchange(reasons_, true))
      reader_gone_ |= !put(colours_ ? "\033[2m" : "(reasoning)\n");
    any_ = true;
    show(piece);
  }
  void end_line() {
    end_reasoning();
    put("\n");
  }

 private:
  void show(std::string_view piece) {
    reader_gone_ |= !put(terminal_ ? cleaned_lines(piece) : std::string(piece));
  }
  void end_reasoning() {
    if (std::exchange(reasons_, false))
      reader_gone_ |= !put(colours_ ? "\033[0m\n\n" : "\n(answer)\n");
  }

  const bool terminal_ = ::isatty(STDOUT_FILENO) != 0;
  const bool colours_ = colours_wanted();
  bool any_ = false;
  bool reasons_ = false;      // the last piece was reasoning
  bool reader_gone_ = false;  // nobody reads stdout any more
};

json fresh_conversation(const std::string& system) {
  json messages = json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  return messages;
}

// One conversation: the class holds its messages and carries out its commands.
class Chat {
 public:
  Chat(const ChatOptions& options, HttpClient& client, bool at_terminal)
      : options_(options),
        client_(client),
        at_terminal_(at_terminal),
        system_(options.system),
        messages_(fresh_conversation(system_)) {}

  // Carries out a command. Returns false after the command to end.
  bool command(std::string_view text) {
    if (text == "/quit" || text == "/exit") return false;
    if (text == "/reset") {
      begin_anew();
    } else if (text == "/system" || text.starts_with("/system ")) {
      system_ = std::string(trimmed(text.substr(7)));
      begin_anew();
    } else if (text == "/help") {
      put(kChatHelp);
    } else {
      std::fprintf(stderr, "no such command; there are:\n%s", kChatHelp);
    }
    return true;
  }

  // Does one turn. Returns the program's exit code, or nothing if the conversation goes on.
  std::optional<int> ask(const std::string& text) {
    const json before = messages_;
    messages_.push_back({{"role", "user"}, {"content", text}});
    Shown shown;
    Result<Answer> answer = answered(shown);
    for (bool told = false; outgrown(answer) && leave_out_oldest_turn(); answer = answered(shown)) {
      if (!std::exchange(told, true))
        std::fprintf(stderr,
                     "(the conversation has outgrown the model's context: its oldest turns "
                     "are left out from here on)\n");
    }
    if (shown.any() || answer.ok()) shown.end_line();
    if (shown.reader_gone()) return 1;
    if (!answer.ok()) {
      messages_ = before;  // the turn did not happen
      fail(answer.error());
      return at_terminal_ ? std::nullopt : std::optional(1);
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer->text}});
    if (answer->interrupted) {
      if (!at_terminal_) return 130;
      put("(stopped)\n");
    } else if (answer->finish_reason == "length") {
      std::fprintf(stderr, "(cut: the answer reached max_tokens or the model's context)\n");
    }
    return std::nullopt;
  }

 private:
  void begin_anew() {
    messages_ = fresh_conversation(system_);
    if (at_terminal_) put("(a new conversation)\n");
  }

  Result<Answer> answered(Shown& shown) {
    json request = {{"messages", messages_}};
    options_.sampling.write_to(request);
    return stream_answer(
        client_, "/v1/chat/completions", std::move(request),
        [&](std::string_view piece) { shown.text(piece); },
        [&](std::string_view piece) { shown.reasoning(piece); });
  }

  static bool outgrown(const Result<Answer>& answer) {
    return !answer.ok() && answer.error().code() == ErrorCode::kResourceExhausted;
  }

  // Drops the oldest turn, but not the system message. Returns false if only the last message is
  // left.
  bool leave_out_oldest_turn() {
    const std::size_t first = system_.empty() ? 0 : 1;
    std::size_t next = first + 1;
    while (next < messages_.size() && messages_[next]["role"] != "user")
      ++next;
    if (next >= messages_.size()) return false;
    messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(first),
                    messages_.begin() + static_cast<std::ptrdiff_t>(next));
    return true;
  }

  const ChatOptions& options_;
  HttpClient& client_;
  const bool at_terminal_;
  std::string system_;
  json messages_;
};

int complete_as_json(HttpClient& client, json request, bool echo) {
  const std::string before = echo ? request["prompt"].get<std::string>() : "";
  request["stream_options"] = {{"include_usage", true}};
  const Result<Answer> answer =
      stream_answer(client, "/v1/completions", std::move(request), [](std::string_view) {});
  if (!answer.ok()) return fail(answer.error());
  const auto number = [](const auto& value) { return value ? json(*value) : json(nullptr); };
  const std::string& reason = answer->finish_reason;
  put_json({{"text", before + answer->text},
            {"finish_reason", reason.empty() ? json(nullptr) : json(reason)},
            {"prompt_tokens", number(answer->prompt_tokens)},
            {"completion_tokens", number(answer->completion_tokens)}});
  return answer->interrupted ? 130 : 0;
}

}  // namespace

int run_chat(const ChatOptions& options) {
  watch_interrupts();
  Result<HttpClient> client = make_client(options.connection);
  if (!client.ok()) return fail(client.error());
  if (const Status ready = wait_until_ready(*client, options.sampling.model); !ready.ok())
    return fail(ready.error());

  const bool at_terminal = ::isatty(STDIN_FILENO) != 0;
  Chat chat(options, *client, at_terminal);
  const std::unique_ptr<LineReader> lines = make_line_reader();
  std::string line;
  if (at_terminal) put("Type a message; /help lists the commands.\n");
  for (;;) {
    interrupted = false;
    const LineReader::Outcome outcome = lines->next(line);
    if (outcome == LineReader::Outcome::kFailed)
      return fail(errno_error(ErrorCode::kInternal, "reading stdin", errno));
    if (outcome == LineReader::Outcome::kEnd) {
      if (at_terminal) put("\n");
      return 0;
    }
    if (outcome == LineReader::Outcome::kInterrupted) {
      if (!at_terminal) return 130;
      put("\n(Ctrl-D or /quit ends)\n");
      continue;
    }
    const std::string_view text = trimmed(line);
    if (text.empty()) continue;
    if (text.starts_with('/') && text.find('\n') == std::string_view::npos) {
      if (!chat.command(text)) return 0;
    } else if (const std::optional<int> code = chat.ask(line)) {
      return *code;
    }
  }
}

int run_complete(const CompleteOptions& options) {
  watch_interrupts();
  std::string prompt = options.prompt;
  if (!options.has_prompt) {
    if (::isatty(STDIN_FILENO) != 0) std::fprintf(stderr, "the prompt, then Ctrl-D:\n");
    Result<std::string> text = read_stdin();
    if (!text.ok()) return fail(text.error());
    if (interrupted) return 130;
    prompt = *std::move(text);
    while (prompt.ends_with('\n'))
      prompt.pop_back();  // the line end comes from the shell and is not a part of the prompt
  }
  if (prompt.empty()) {
    return fail(Error(ErrorCode::kInvalidArgument,
                      "the prompt is empty; give it as an argument or on stdin"));
  }
  Result<HttpClient> client = make_client(options.connection);
  if (!client.ok()) return fail(client.error());
  if (const Status ready = wait_until_ready(*client, options.sampling.model); !ready.ok())
    return fail(ready.error());

  json request = {{"prompt", prompt}};
  options.sampling.write_to(request);
  if (options.json) return complete_as_json(*client, std::move(request), options.echo);
  Shown shown;
  if (options.echo) shown.text(prompt);
  const Result<Answer> answer = stream_answer(*client, "/v1/completions", std::move(request),
                                              [&](std::string_view piece) { shown.text(piece); });
  if (shown.any() || answer.ok()) shown.end_line();
  if (!answer.ok()) return fail(answer.error());
  if (answer->interrupted) return 130;
  return shown.reader_gone() ? 1 : 0;
}

}  // namespace bulkhead::cli
