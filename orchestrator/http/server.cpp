#include "orchestrator/http/server.hpp"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "config/base/log.hpp"
#include "config/base/loopback.hpp"
#include "orchestrator/http/connection.hpp"
#include "orchestrator/http/deferred_sends.hpp"

namespace bulkhead::orchestrator {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t kMaxConnections = 2048;
constexpr std::size_t kForOperators = 16;  // connections kept for operators' requests
constexpr std::size_t kFewestConnections = 2 * kForOperators;
// A connection that is younger may have sent its request already.
constexpr std::chrono::milliseconds kIdleAtLeast{250};
constexpr std::chrono::seconds kCloseTimeout{5};

// Leaves half of the descriptors that this process may have to workers and files: otherwise clients could keep a
// worker from being replaced.
std::size_t places() {
  rlimit open_files{};
  if (::getrlimit(RLIMIT_NOFILE, &open_files) != 0) return kMaxConnections;
  return std::clamp<rlim_t>(open_files.rlim_cur / 2, kFewestConnections, kMaxConnections);
}

}  // namespace

struct Server::Impl final : ConnectionOwner, std::enable_shared_from_this<Server::Impl> {
  Impl(EventLoop& the_loop, ServerOptions options)
      : ConnectionOwner(the_loop, options.max_body_bytes, options.max_memory_bytes),
        host(std::move(options.host)),
        port(options.port),
        acceptor(loop.context()),
        pause(loop.context()),
        close_timer(loop) {}

  void accept();
  void wait_for_one();
  bool accept_one();
  void accepted(tcp::socket socket);
  void begin(const std::shared_ptr<Connection>& connection);
  bool close_longest_idle();
  void accept_later();
  void connection_gone(const std::shared_ptr<Connection>& connection) override;
  bool end_largest_body() override;
  void send_after_this(std::shared_ptr<Connection> connection) override {
    sends.add(std::move(connection));
  }

  const std::string host;
  const std::uint16_t port;
  const std::size_t most_connections = places();
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  Timer close_timer;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  DeferredSends sends{loop};
  std::function<void()> closed;
  bool accepting = false;
  std::uint64_t refused = 0, idle_closed = 0;
};

void Server::Impl::accept() {
  if (accepting || !acceptor.is_open()) return;
  try {
    wait_for_one();
    accepting = true;
  } catch (const std::exception& error) {  // nothing else would begin to accept again
    loop.caught("the wait for connections", error);
    accept_later();
  }
}

// Waits without accepting, because Asio allocates while it accepts. Without memory, the handler of an asynchronous
// accept would never be called.
void Server::Impl::wait_for_one() {
  acceptor.async_wait(tcp::acceptor::wait_read, [self = shared_from_this()](error_code error) {
    self->accepting = false;
    if (error == asio::error::operation_aborted || !self->acceptor.is_open()) return;
    bool later = false;
    self->loop.call("a new connection", [&] { later = !self->accept_one(); });
    // Accepts the next connection whether this one failed or not.
    if (!later) self->accept();
  });
}

// Returns false if it begins to accept again by itself, after a pause.
bool Server::Impl::accept_one() {
  tcp::socket socket(loop.context());
  error_code error;
  acceptor.accept(socket, error);
  if (error == asio::error::would_block || error == asio::error::connection_aborted) return true;
  if (error) {
    // The process has probably run out of descriptors. Some connections will be closed in a moment.
    spdlog::warn("accepting a connection: {}", error.message());
    accept_later();
    return false;
  }
  accepted(std::move(socket));
  return true;
}

void Server::Impl::accept_later() {
  pause.expires_after(std::chrono::milliseconds(100));
  pause.async_wait([self = shared_from_this()](error_code aborted) {
    if (!aborted) self->accept();
  });
}

void Server::Impl::accepted(tcp::socket socket) {
  auto connection = make_connection(shared_from_this(), std::move(socket));
  try {
    begin(connection);
  } catch (const std::exception&) {  // nobody reads from it, and no timer would end it
    connection->close_now();
    throw;
  }
}

void Server::Impl::begin(const std::shared_ptr<Connection>& connection) {
  const std::size_t others = connections.size();
  const bool full = others >= most_connections - kForOperators && !close_longest_idle();
  connections.insert(connection);
  if (full && others >= most_connections) {
    ++refused;
    return connection->refuse_for_overload();
  }
  connection->begin(full);
}

// A client whose idle connection is closed can make a new one; a client that is turned away can't.
bool Server::Impl::close_longest_idle() {
  std::shared_ptr<Connection> longest;
  auto since = std::chrono::steady_clock::now() - kIdleAtLeast;
  for (const auto& each : connections) {
    const auto idle = each->idle_since();
    if (!idle.has_value() || *idle >= since) continue;
    since = *idle;
    longest = each;
  }
  if (longest == nullptr) return false;
  ++idle_closed;
  longest->close_now();
  return true;
}

bool Server::Impl::end_largest_body() {
  std::shared_ptr<Connection> largest;
  std::size_t most = 0;
  for (const auto& each : connections) {
    const std::size_t bytes = each->unfinished_body_bytes();
    if (bytes <= most) continue;
    most = bytes;
    largest = each;
  }
  if (largest == nullptr) return false;
  largest->refuse_for_memory();
  return true;
}

void Server::Impl::connection_gone(const std::shared_ptr<Connection>& connection) {
  connections.erase(connection);
  if (!accepting && !closing && api != nullptr) accept();
  if (closing && connections.empty() && closed) loop.post(std::exchange(closed, nullptr));
}

Server::Server(EventLoop& loop, ServerOptions options)
    : impl_(std::make_shared<Impl>(loop, std::move(options))) {}

Server::~Server() = default;

Status Server::listen() {
  std::string where = fmt::format("listening on {}:{}", impl_->host, impl_->port);
  std::string host = impl_->host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  error_code error;
  tcp::endpoint endpoint;
  asio::ip::address address = asio::ip::make_address(host, error);
  if (!error) {
    endpoint = {address, impl_->port};
  } else {
    tcp::resolver resolver(impl_->loop.context());
    auto found = resolver.resolve(host, std::to_string(impl_->port), tcp::resolver::passive, error);
    if (error || found.empty()) {
      return Error(ErrorCode::kNotFound, where + ": the host's name is unknown (server.host)");
    }
    endpoint = found.begin()->endpoint();
    for (const auto& entry : found) {
      if (entry.endpoint().address().is_v4()) {
        endpoint = entry.endpoint();
        break;
      }
    }
  }
  auto fail = [&](const char* step) {
    std::string why = fmt::format("{}: {} (server.host, server.port)", step, error.message());
    if (error == asio::error::address_in_use) {
      why = "another program listens there; stop it, or take another server.port (0: any free one)";
    } else if (error == asio::error::access_denied) {
      why = "not allowed; ports below 1024 need privileges: take another server.port";
    } else if (error == boost::system::errc::address_not_available) {
      why = "this machine has no such address; change server.host";
    }
    return Error(ErrorCode::kUnavailable, where + ": " + why);
  };
  impl_->acceptor.open(endpoint.protocol(), error);
  if (error) return fail("socket");
  impl_->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  impl_->acceptor.bind(endpoint, error);
  if (error) return fail("bind");
  impl_->acceptor.listen(SOMAXCONN, error);
  if (error) return fail("listen");
  return {};
}

Status Server::listen_at(std::vector<UniqueFd> passed) {
  for (UniqueFd& fd : passed) {
    const auto option = [&fd](int name) {
      int value = 0;
      socklen_t size = sizeof value;
      return ::getsockopt(fd.get(), SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
    };
    const int family = option(SO_DOMAIN);
    if (option(SO_ACCEPTCONN) != 1 || option(SO_TYPE) != SOCK_STREAM) continue;
    if (family != AF_INET && family != AF_INET6) continue;
    error_code error;
    impl_->acceptor.assign(family == AF_INET ? tcp::v4() : tcp::v6(), fd.get(), error);
    if (error)
      return Error(ErrorCode::kUnavailable, "the service manager's socket: " + error.message());
    (void)fd.release();
    const tcp::endpoint at = impl_->acceptor.local_endpoint(error);
    if (!error && at.address().is_loopback() == is_loopback(impl_->host)) return {};
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "the service manager's socket listens at {}, but server.host is {}: write the same "
            "address in both (ListenStream= of the socket unit, server.host)",
            at.address().to_string(), impl_->host));
  }
  return Error(
      ErrorCode::kInvalidArgument,
      "the service manager passed no TCP socket that listens (LISTEN_FDS); the socket unit needs "
      "ListenStream= with an address and a port, and Accept=no");
}

std::uint16_t Server::port() const {
  error_code error;
  return impl_->acceptor.local_endpoint(error).port();
}

void Server::serve(Api& api) {
  impl_->api = &api;
  if (impl_->most_connections < kMaxConnections) {
    spdlog::warn(
        "at most {} connections, and not {}, because the limit on open files (`ulimit -n`) is low",
        impl_->most_connections, kMaxConnections);
  }
  error_code ignored;
  impl_->acceptor.non_blocking(true, ignored);
  // Else Asio would wait for the next connection within accept(), on the event loop, if one ends before that call.
  impl_->acceptor.set_option(asio::socket_base::enable_connection_aborted(true), ignored);
  impl_->accept();
}

void Server::set_limits(std::size_t max_body_bytes, std::size_t max_memory_bytes) {
  impl_->max_body_bytes = max_body_bytes;
  impl_->memory.resize(max_memory_bytes);
}
Server::Figures Server::figures() const {
  const ConnectionOwner::Figures& counted = impl_->figures;
  return {impl_->memory.used(), impl_->memory.most(), counted.bad_framing, counted.no_memory,
          counted.slow_senders, counted.exceptions,   impl_->refused,      impl_->idle_closed};
}
std::size_t Server::connections() const {
  return impl_->connections.size();
}

void Server::close(std::function<void()> closed) {
  impl_->closing = true;
  error_code ignored;
  impl_->acceptor.close(ignored);
  impl_->closed = std::move(closed);
  auto connections = impl_->connections;
  for (const auto& connection : connections)
    connection->close_when_idle();
  if (impl_->connections.empty() && impl_->closed) {
    impl_->loop.post(std::exchange(impl_->closed, nullptr));
    return;
  }
  impl_->close_timer.start(kCloseTimeout, [impl = impl_] {
    auto rest = impl->connections;
    for (const auto& connection : rest)
      connection->close_now();
  });
}

}  // namespace bulkhead::orchestrator
