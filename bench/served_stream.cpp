#include "bench/served_stream.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

namespace bulkhead::bench {
namespace {

constexpr int kListenPatience_ms = 600000;  // a big model may be loading
constexpr int kReadPatience_ms = 120000;

Error system_error(const char* what) {
  return errno_error(ErrorCode::kUnavailable, what, errno);
}

Result<UniqueFd> connect_to(const Endpoint& server) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  if (const int code =
          ::getaddrinfo(server.host.c_str(), std::to_string(server.port).c_str(), &wanted, &found);
      code != 0)
    return Error(ErrorCode::kUnavailable, server.host + ": " + ::gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  UniqueFd fd;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    fd.reset(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return system_error("socket");
    if (::connect(fd.get(), each->ai_addr, each->ai_addrlen) == 0) break;
    if (each->ai_next == nullptr) return system_error("connecting to the server");
  }
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

Status send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return system_error("sending a request");
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return {};
}

// What was read from one connection: all bytes, and after each read the number of bytes so far.
struct Reading {
  UniqueFd fd;
  std::string bytes;
  std::vector<std::pair<std::size_t, std::uint64_t>> marks;  // bytes so far, and the time
  std::size_t ends = 0, counted = 0;  // of events, in the first `counted` bytes

  // Counts empty lines made of "\n\n" alone; HTTP's own lines have "\r".
  void count_ends() {
    for (std::size_t at; (at = bytes.find("\n\n", counted)) != std::string::npos; ++ends)
      counted = at + 2;
    if (bytes.size() > counted + 1) counted = bytes.size() - 1;
  }
};

Error broken(const char* what, const std::string& bytes) {
  constexpr std::size_t kShown = 300;
  const std::string shown = bytes.size() <= 2 * kShown ? bytes
                                                       : bytes.substr(0, kShown) + " ... " +
                                                             bytes.substr(bytes.size() - kShown);
  return Error(ErrorCode::kCorrupt, std::string("a stream's answer ") + what + ": " + shown);
}

// Removes HTTP's chunks, and splits the rest into events. `whole`: the answer must be complete.
Result<std::vector<Event>> events_of(const Reading& reading, bool whole) {
  const std::string& bytes = reading.bytes;
  const std::size_t head = bytes.find("\r\n\r\n");
  if (head == std::string::npos || !bytes.starts_with("HTTP/1.1 200")) {
    return broken("is not a 200", bytes);
  }
  std::vector<Event> events;
  std::string text;
  auto mark = reading.marks.begin();
  for (std::size_t at = head + 4;;) {
    const std::size_t line = bytes.find("\r\n", at);
    std::size_t size = 0;
    if (line == std::string::npos ||
        std::from_chars(bytes.data() + at, bytes.data() + line, size, 16).ec != std::errc() ||
        line + 2 + size + 2 > bytes.size()) {
      if (!whole) return events;
      return broken("breaks off or has a broken chunk", bytes);
    }
    if (size == 0) break;
    text.append(bytes, line + 2, size);
    at = line + 2 + size + 2;
    while (mark->first < at)
      ++mark;
    for (std::size_t end; (end = text.find("\n\n")) != std::string::npos; text.erase(0, end + 2)) {
      if (text.starts_with(':')) continue;
      if (!text.starts_with("data: ")) return broken("has an event without data", text);
      events.push_back({mark->second, text.substr(6, end - 6)});
    }
  }
  if (events.empty() || events.back().data != "[DONE]") return broken("has no [DONE]", bytes);
  return events;
}

}  // namespace

std::uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t cpu_ns(pid_t pid) {
  clockid_t clock{};
  timespec used{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;
  return static_cast<std::uint64_t>(used.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(used.tv_nsec);
}

Result<Endpoint> parse_endpoint(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const std::string shown(url);
  const Error wrong(ErrorCode::kInvalidArgument, shown + " is not http://HOST:PORT");
  if (!url.starts_with(kScheme)) return wrong;
  url.remove_prefix(kScheme.size());
  const std::size_t slash = url.find('/');
  const std::string_view path = slash == std::string_view::npos ? "" : url.substr(slash);
  if (path != "" && path != "/" && path != "/v1" && path != "/v1/") return wrong;
  url = url.substr(0, slash);
  const std::size_t colon = url.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return wrong;
  std::uint16_t port = 0;
  const char* const end = url.data() + url.size();
  const auto [rest, failed] = std::from_chars(url.data() + colon + 1, end, port);
  if (failed != std::errc() || rest != end || port == 0) return wrong;
  return Endpoint(std::string(url.substr(0, colon)), port);
}

std::string own_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}
std::string program_beside(const std::string& name) {
  return (std::filesystem::path(own_program()).parent_path() / name).string();
}

Result<DaemonProcess> DaemonProcess::start(const std::vector<std::string>& arguments,
                                           const std::map<std::string, std::string>& environment) {
  const std::string program = program_beside("bulkheadd");
  if (::access(program.c_str(), X_OK) != 0) {
    return Error(ErrorCode::kNotFound, program + " is not there: build the target bulkheadd, too");
  }
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return system_error("pipe");
  DaemonProcess daemon;
  daemon.output_.reset(pipe[0]);
  UniqueFd input(pipe[1]);
  UniqueFd log(::memfd_create("bulkheadd-log", MFD_CLOEXEC));
  if (!log.valid()) return system_error("memfd_create");
  std::vector<std::string> words = {program, "--set", "server.port=0", "--set", "log.level=warn"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  daemon.pid_ = ::fork();
  if (daemon.pid_ < 0) return system_error("fork");
  if (daemon.pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(input.get(), STDOUT_FILENO);
    ::dup2(log.get(), STDERR_FILENO);
    for (const auto& [name, value] : environment)
      ::setenv(name.c_str(), value.c_str(), 1);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  input.reset();
  std::string line;
  while (line.find('\n') == std::string::npos) {
    pollfd item{daemon.output_.get(), POLLIN, 0};
    char bytes[256];
    const int ready = ::poll(&item, 1, kListenPatience_ms);
    const ssize_t got = ready > 0 ? ::read(item.fd, bytes, sizeof bytes) : -1;
    if (got <= 0) {
      std::string said(4096, '\0');
      said.resize(static_cast<std::size_t>(
          std::max<ssize_t>(0, ::pread(log.get(), said.data(), said.size(), 0))));
      return Error(ErrorCode::kUnavailable, "the daemon did not come to listen: " + said);
    }
    line.append(bytes, static_cast<std::size_t>(got));
  }
  daemon.port_ =
      static_cast<std::uint16_t>(std::strtoul(line.c_str() + line.rfind(':') + 1, nullptr, 10));
  return daemon;
}

DaemonProcess::DaemonProcess(DaemonProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), port_(other.port_), output_(std::move(other.output_)) {}

DaemonProcess::~DaemonProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGTERM);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

Result<std::string> DaemonProcess::get(const std::string& path) const {
  BULKHEAD_TRY(const UniqueFd fd, connect_to(port_));
  BULKHEAD_RETURN_IF_ERROR(send_all(
      fd.get(), "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"));
  std::string answer;
  char bytes[16384];
  for (ssize_t got; (got = ::recv(fd.get(), bytes, sizeof bytes, 0)) > 0;) {
    answer.append(bytes, static_cast<std::size_t>(got));
  }
  const std::size_t head = answer.find("\r\n\r\n");
  if (head == std::string::npos || !answer.starts_with("HTTP/1.1 200")) {
    return broken("to GET is not a 200", answer);
  }
  return answer.substr(head + 4);
}

Result<pid_t> DaemonProcess::worker_pid() const {
  BULKHEAD_TRY(const nlohmann::json workers, this->workers());
  if (!workers[0]["pid"].is_number()) return broken("names no worker", workers.dump());
  return workers[0]["pid"].get<pid_t>();
}

Result<nlohmann::json> DaemonProcess::workers() const {
  BULKHEAD_TRY(const std::string body, get("/v1/workers"));
  nlohmann::json workers = nlohmann::json::parse(body, nullptr, false);
  if (!workers.is_array() || workers.empty() || !workers[0].contains("pid")) {
    return broken("names no worker", body);
  }
  return workers;
}

Result<std::vector<Stream>> stream_completions(const Endpoint& server,
                                               const std::vector<std::string>& bodies,
                                               const Watcher& watcher) {
  bool watched = true;  // until the watcher hangs up
  std::vector<Stream> streams(bodies.size());
  std::vector<Reading> readings(bodies.size());
  std::vector<std::string> requests;
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return system_error("epoll_create1");
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    BULKHEAD_TRY(readings[i].fd, connect_to(server));
    readings[i].bytes.reserve(std::size_t{1} << 20);
    readings[i].marks.reserve(4096);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, readings[i].fd.get(), &event) != 0) {
      return system_error("epoll_ctl");
    }
    requests.push_back(
        "POST /v1/completions HTTP/1.1\r\nHost: " + server.host +
        "\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: " +
        std::to_string(bodies[i].size()) + "\r\n\r\n" + bodies[i]);
  }
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    streams[i].sent_ns = now_ns();
    BULKHEAD_RETURN_IF_ERROR(send_all(readings[i].fd.get(), requests[i]));
  }
  std::vector<epoll_event> ready(bodies.size());
  char bytes[65536];
  for (std::size_t open = bodies.size(); open > 0 && watched;) {
    const int count =
        ::epoll_wait(epoll.get(), ready.data(), static_cast<int>(ready.size()), kReadPatience_ms);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Error(ErrorCode::kDeadlineExceeded, "a stream sent nothing for long");
    for (int r = 0; r < count; ++r) {
      const std::size_t number = ready[static_cast<std::size_t>(r)].data.u64;
      Reading& reading = readings[number];
      const ssize_t got = ::recv(reading.fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) {
        reading.fd.reset();  // leaves the epoll, too
        --open;
        continue;
      }
      reading.bytes.append(bytes, static_cast<std::size_t>(got));
      reading.marks.emplace_back(reading.bytes.size(), now_ns());
      if (!watcher) continue;
      reading.count_ends();
      watched &= watcher(number, reading.ends, reading.marks.back().second);
    }
  }
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    BULKHEAD_TRY(streams[i].events, events_of(readings[i], watched));
  }
  return streams;
}

}  // namespace bulkhead::bench
