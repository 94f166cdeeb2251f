#include "orchestrator/tracing/span_export.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <exception>
#include <iterator>
#include <mutex>
#include <string_view>
#include <utility>

#include "config/base/clean_text.hpp"
#include "config/base/log.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How long the daemon's end waits for the last spans.
constexpr milliseconds kLastSpans{500};
constexpr std::size_t kLongestAnswer = 64 << 10;

// One connection to the collector, which is given up at `end`.
class Posting {
 public:
  explicit Posting(Clock::time_point end) : end_(end) {}

  Status connect(const config::HttpAddress& to) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = ::getaddrinfo(to.host.c_str(), to.port.c_str(), &wanted, &found);
        error != 0)
      return Error(ErrorCode::kUnavailable, to.host + ": " + ::gai_strerror(error));
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
    Status last = Error(ErrorCode::kUnavailable, to.host + " has no address");
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      last = connect_to(*each);
      if (last.ok()) return last;
    }
    return last;
  }

  Status send(std::string_view bytes) {
    while (!bytes.empty()) {
      BULKHEAD_RETURN_IF_ERROR(wait_for(POLLOUT));
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (sent < 0) return errno_error(ErrorCode::kUnavailable, "send", errno);
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return {};
  }

  // Reads until the answer's first line is there, and checks that it says success.
  Status read_success() {
    std::string answer;
    while (answer.find("\r\n") == std::string::npos) {
      BULKHEAD_RETURN_IF_ERROR(wait_for(POLLIN));
      char bytes[4096];
      const ssize_t got = ::recv(socket_.get(), bytes, sizeof bytes, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got < 0) return errno_error(ErrorCode::kUnavailable, "recv", errno);
      if (got == 0) return Error(ErrorCode::kUnavailable, "it closed the connection unanswered");
      answer.append(bytes, static_cast<std::size_t>(got));
      if (answer.size() > kLongestAnswer)
        return Error(ErrorCode::kCorrupt, "its answer is not HTTP");
    }
    const std::string line = answer.substr(0, answer.find("\r\n"));
    if (line.starts_with("HTTP/1.") && line.size() > 9 && line[9] == '2') return {};
    return Error(ErrorCode::kUnavailable, "it answered '" + line.substr(0, 100) + "'");
  }

 private:
  Status connect_to(const addrinfo& address) {
    socket_.reset(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_.valid()) return errno_error(ErrorCode::kResourceExhausted, "socket", errno);
    if (::connect(socket_.get(), address.ai_addr, address.ai_addrlen) == 0) return {};
    if (errno != EINPROGRESS) return errno_error(ErrorCode::kUnavailable, "connect", errno);
    BULKHEAD_RETURN_IF_ERROR(wait_for(POLLOUT));
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? Status() : errno_error(ErrorCode::kUnavailable, "connect", error);
  }

  Status wait_for(short event) const {
    for (;;) {
      const auto left = std::chrono::ceil<milliseconds>(end_ - Clock::now());
      pollfd item{socket_.get(), event, 0};
      const int ready = left.count() <= 0 ? 0 : ::poll(&item, 1, static_cast<int>(left.count()));
      if (ready > 0) return {};
      if (ready == 0) return Error(ErrorCode::kDeadlineExceeded, "it takes too long");
      if (errno != EINTR) return errno_error(ErrorCode::kInternal, "poll", errno);
    }
  }

  const Clock::time_point end_;
  UniqueFd socket_;
};

}  // namespace

struct SpanExport::State {
  explicit State(Options the_options) : options(std::move(the_options)) {}

  void run() {
    milliseconds pause = options.pause;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ends || !waiting.empty(); });
      if (waiting.empty()) return;
      const std::size_t taken = std::min(waiting.size(), options.most_at_once);
      bool accepted = false;
      try {
        accepted = send(take(taken), lock);
      } catch (const std::exception&) {  // there is no memory for these spans
        if (!lock.owns_lock()) lock.lock();
      }
      (accepted ? exported : refused) += taken;
      if (accepted) {
        pause = options.pause;
        continue;
      }
      // Spans that come meanwhile wait, as many as may.
      changed.wait_for(lock, pause, [this] { return ends; });
      if (ends) return;
      pause = std::min(2 * pause, options.longest_pause);
    }
  }

  const Options options;
  std::mutex mutex;
  std::condition_variable changed;
  // All of these are guarded by the mutex.
  std::deque<GenerationSpan> waiting;
  std::uint64_t exported = 0, refused = 0, no_room = 0;
  bool ends = false;
  std::string told;  // the last failure that was logged; empty: the last request succeeded

 private:
  // Takes the first spans out of the queue, even if there is no memory to return them.
  std::vector<GenerationSpan> take(std::size_t count) {
    const auto end = waiting.begin() + static_cast<std::ptrdiff_t>(count);
    std::vector<GenerationSpan> batch;
    try {
      batch.assign(std::move_iterator(waiting.begin()), std::move_iterator(end));
    } catch (const std::exception&) {
      waiting.erase(waiting.begin(), end);
      throw;
    }
    waiting.erase(waiting.begin(), end);
    return batch;
  }

  // Sends the spans while the lock is open. Returns whether the collector took them.
  bool send(const std::vector<GenerationSpan>& batch, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    const Status sent = post(otlp_body(batch, options.version));
    lock.lock();
    if (!ends) tell(sent);
    return sent.ok();
  }

  Status post(const std::string& body) const {
    const config::HttpAddress& to = options.collector;
    Posting posting(Clock::now() + options.patience);
    BULKHEAD_RETURN_IF_ERROR(posting.connect(to));
    BULKHEAD_RETURN_IF_ERROR(posting.send(fmt::format(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
        "User-Agent: bulkhead/{}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        to.path.empty() ? "/v1/traces" : to.path, to.authority, options.version, body.size())));
    BULKHEAD_RETURN_IF_ERROR(posting.send(body));
    return posting.read_success();
  }

  void tell(const Status& sent) {
    const std::string words = sent.ok() ? "" : sent.error().message();
    if (std::exchange(told, words) == words) return;
    if (sent.ok()) return spdlog::info("the collector of traces takes spans again");
    spdlog::warn("spans are dropped: the collector at {} (server.otlp_endpoint): {}",
                 options.collector.authority, cleaned(words));
  }
};

SpanExport::SpanExport(Options options) : state_(std::make_shared<State>(std::move(options))) {
  // The thread is detached, because it may be waiting for a name server when the daemon ends.
  thread_.start([state = state_] { state->run(); });
}

SpanExport::~SpanExport() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
    state_->changed.notify_all();
  }
  thread_.await_end(kLastSpans);
}

void SpanExport::add(GenerationSpan span) {
  const std::lock_guard lock(state_->mutex);
  if (state_->waiting.size() >= state_->options.most_waiting) {
    ++state_->no_room;
    return;
  }
  state_->waiting.push_back(std::move(span));
  state_->changed.notify_all();
}

std::vector<DaemonFigure> SpanExport::figures() const {
  const std::lock_guard lock(state_->mutex);
  constexpr const char* kDropped = "bulkhead_trace_dropped_generations_total";
  constexpr const char* kHelp = "Generations whose spans the collector of traces did not get";
  return {{"bulkhead_trace_exported_generations_total",
           "Generations whose spans the collector of traces took",
           static_cast<double>(state_->exported)},
          {kDropped, kHelp, static_cast<double>(state_->refused), true, "reason", "collector"},
          {kDropped, kHelp, static_cast<double>(state_->no_room), true, "reason", "no_room"}};
}

}  // namespace bulkhead::orchestrator
