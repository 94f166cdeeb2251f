// `bulkhead chat` and `bulkhead complete`: the two that generate.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>

#include <nlohmann/json.hpp>

#include "tools/cli/commands.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

// A terminal hands over lines of at most so many bytes, and drops what is behind them.
constexpr std::size_t kTerminalLineBytes = 4095;

constexpr const char* kChatHelp =
    "  /reset          forget the conversation\n"
    "  /system TEXT    forget it and start with TEXT as the system message (none: without one)\n"
    "  /quit           end (so does Ctrl-D)\n"
    "  Ctrl-C          stop an answer; at the prompt, drop the line\n";

// Lines of stdin by read(), so that Ctrl-C at the prompt is seen.
class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kInterrupted, kFailed };  // kFailed: errno says how
  Outcome next(std::string& line) {
    for (;;) {
      const std::size_t end = buffer_.find('\n', searched_);
      if (end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        searched_ = 0;
        if (line.ends_with('\r')) line.pop_back();
        return Outcome::kLine;
      }
      searched_ = buffer_.size();
      char chunk[4096];
      const ssize_t got = ::read(STDIN_FILENO, chunk, sizeof chunk);
      if (got > 0) {
        buffer_.append(chunk, static_cast<std::size_t>(got));
      } else if (got < 0 && errno == EINTR) {
        if (interrupted) return Outcome::kInterrupted;
      } else if (got < 0) {
        return Outcome::kFailed;
      } else {
        if (buffer_.empty()) return Outcome::kEnd;
        line = std::exchange(buffer_, "");
        searched_ = 0;
        return Outcome::kLine;
      }
    }
  }

 private:
  std::string buffer_;
  std::size_t searched_ = 0;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t'))
    text.remove_suffix(1);
  return text;
}

json fresh_conversation(const std::string& system) {
  json messages = json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  return messages;
}

}  // namespace

int run_chat(const ChatOptions& options) {
  watch_interrupts();
  Result<HttpClient> client = make_client(options.connection);
  if (!client.ok()) return fail(client.error());
  if (const Status ready = wait_until_ready(*client, options.sampling.model); !ready.ok())
    return fail(ready.error());

  const bool at_terminal = ::isatty(STDIN_FILENO) != 0;
  std::string system = options.system;
  json messages = fresh_conversation(system);
  LineReader lines;
  std::string line;
  if (at_terminal) put("Type a message; /help tells what else there is.\n");
  for (;;) {
    if (at_terminal) put("> ");
    interrupted = false;
    const LineReader::Outcome outcome = lines.next(line);
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
    if (at_terminal && line.size() >= kTerminalLineBytes) {
      std::fprintf(stderr,
                   "(not sent: the terminal has cut the line at %zu bytes; `bulkhead chat < FILE` "
                   "takes lines of any length)\n",
                   kTerminalLineBytes);
      continue;
    }
    const std::string_view text = trimmed(line);
    if (text.empty()) continue;
    if (text.starts_with('/')) {
      if (text == "/quit" || text == "/exit") return 0;
      if (text == "/reset") {
        messages = fresh_conversation(system);
        if (at_terminal) put("(a new conversation)\n");
      } else if (text == "/system" || text.starts_with("/system ")) {
        system = std::string(trimmed(text.substr(7)));
        messages = fresh_conversation(system);
        if (at_terminal) put("(a new conversation)\n");
      } else if (text == "/help") {
        put(kChatHelp);
      } else {
        std::fprintf(stderr, "no such command; there are:\n%s", kChatHelp);
      }
      continue;
    }

    messages.push_back({{"role", "user"}, {"content", line}});
    json request = {{"messages", messages}};
    options.sampling.write_to(request);
    bool begun = false, reader_gone = false;
    const Result<Answer> answer = stream_answer(*client, "/v1/chat/completions", std::move(request),
                                                [&](std::string_view piece) {
                                                  begun = true;
                                                  reader_gone |= !put(piece);
                                                });
    if (begun || answer.ok()) put("\n");
    if (reader_gone) return 1;
    if (!answer.ok()) {
      // The turn did not happen; the next one starts from the same conversation.
      messages.erase(messages.end() - 1);
      fail(answer.error());
      if (!at_terminal) return 1;
      continue;
    }
    messages.push_back({{"role", "assistant"}, {"content", answer->text}});
    if (answer->interrupted) {
      if (!at_terminal) return 130;
      put("(stopped)\n");
    } else if (answer->finish_reason == "length") {
      std::fprintf(
          stderr,
          "(cut: the answer reached max_tokens or the model's context; /reset starts anew)\n");
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
      prompt.pop_back();  // a line's end is the shell's, not the prompt's
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
  if (options.echo) put(prompt);
  bool begun = options.echo, reader_gone = false;
  const Result<Answer> answer =
      stream_answer(*client, "/v1/completions", std::move(request), [&](std::string_view piece) {
        begun = true;
        reader_gone |= !put(piece);
      });
  if (begun || answer.ok()) put("\n");
  if (!answer.ok()) return fail(answer.error());
  if (answer->interrupted) return 130;
  return reader_gone ? 1 : 0;
}

}  // namespace bulkhead::cli
