#include "orchestrator/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace bulkhead::orchestrator {

namespace {

std::string take_from_environment(const char* name) {
  const char* const value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  ::unsetenv(name);
  return taken;
}

// Returns 0 if the text is not a number.
std::int64_t number_of(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

constexpr int kFirstPassed = 3;  // sd_listen_fds(3)
constexpr std::int64_t kMostPassed = 64;

std::vector<UniqueFd> take_passed() {
  const std::int64_t count = number_of(take_from_environment("LISTEN_FDS"));
  const std::int64_t process = number_of(take_from_environment("LISTEN_PID"));
  ::unsetenv("LISTEN_FDNAMES");
  std::vector<UniqueFd> passed;
  if (process != ::getpid()) return passed;
  for (int i = 0; i < std::min(count, kMostPassed); ++i)
    passed.emplace_back(kFirstPassed + i);
  return passed;
}

}  // namespace

ServiceManager::ServiceManager(EventLoop& loop)
    : passed_(take_passed()), timer_(loop), address_(take_from_environment("NOTIFY_SOCKET")) {
  const std::int64_t silence_us = number_of(take_from_environment("WATCHDOG_USEC"));
  const std::string watched = take_from_environment("WATCHDOG_PID");
  // The address is a path or, with an "@", a name in the abstract namespace.
  const bool fits = address_.size() > 1 && address_.size() < sizeof(sockaddr_un::sun_path);
  if (!fits || (address_[0] != '/' && address_[0] != '@')) {
    address_.clear();
    return;
  }
  socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Sends twice as often as required, as sd_watchdog_enabled(3) advises.
  if (silence_us > 1 && (watched.empty() || number_of(watched) == ::getpid()))
    interval_ = std::chrono::microseconds(silence_us / 2);
}

void ServiceManager::ready(const std::string& status) {
  send("READY=1\nSTATUS=" + status);
  if (interval_.count() > 0 && !timer_.running()) feed_watchdog();
}

void ServiceManager::ending(const std::string& status) {
  send("STOPPING=1\nSTATUS=" + status);
}

void ServiceManager::send(std::string_view message) {
  if (address_.empty()) return;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, address_.data(), address_.size());
  if (to.sun_path[0] == '@') to.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  (void)::sendto(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                 reinterpret_cast<const sockaddr*>(&to), size);
}

void ServiceManager::feed_watchdog() {
  send("WATCHDOG=1");
  timer_.start(interval_, [this] { feed_watchdog(); });
}

}  // namespace bulkhead::orchestrator
