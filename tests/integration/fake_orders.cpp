#include "tests/integration/fake_orders.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

namespace bulkhead::test {

namespace {

void write_for_ever(std::string text) {
  std::thread([text = std::move(text)] {
    while (::write(2, text.data(), text.size()) > 0) {
    }
  }).detach();
}

}  // namespace

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<std::uint32_t> order(const std::string& prompt, const std::string& word) {
  std::size_t at = prompt.find(word + "@");
  if (at == std::string::npos) return std::nullopt;
  return static_cast<std::uint32_t>(
      std::strtoul(prompt.c_str() + at + word.size() + 1, nullptr, 10));
}

std::string rendered(const ipc::ChatPrompt& chat) {
  std::string prompt;
  const auto json = nlohmann::json::parse(chat.json);
  for (const auto& message : json["messages"]) {
    prompt += message["role"].get<std::string>() + ": ";
    const auto content = message.value("content", nlohmann::json());
    if (content.is_string()) prompt += content.get<std::string>();
    if (content.is_array()) {
      for (const auto& part : content)
        prompt += part["text"].get<std::string>();
    }
    prompt += '\n';
  }
  return prompt;
}

[[noreturn]] void die_by_signal() {
  ::raise(SIGKILL);
  std::abort();
}

void misuse_log(const std::string& prompt) {
  const auto asked = [&prompt](const char* word) { return prompt.find(word) != std::string::npos; };
  if (asked("scribble")) {
    constexpr std::string_view kText =
        "look: \x1b]0;title\x07\x1b[31mred \xc2\x9b"
        "2J \xff\r\n2026-01-01T00:00:00.000Z "
        "bulkheadd[1] info: all is well\n";
    (void)!::write(2, kText.data(), kText.size());
  }
  if (asked("truncate") && ::ftruncate(2, 0) == 0) std::exit(11);
  if (asked("flood")) write_for_ever(std::string(120, 'f') + "\n");
  if (asked("endless")) write_for_ever(std::string(4000, 'e'));
}

[[noreturn]] void die_while_loading(std::size_t start) {
  if (environment("FAKE_DIE_BY_SIGNALS").empty()) std::exit(7);
  constexpr int kSignals[] = {SIGHUP,  SIGINT,  SIGILL,  SIGABRT, SIGBUS,  SIGFPE, SIGUSR1,
                              SIGSEGV, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, SIGSYS, SIGXCPU};
  const int number = kSignals[start % std::size(kSignals)];
  ::signal(number, SIG_DFL);
  ::raise(number);
  std::abort();
}

}  // namespace bulkhead::test
