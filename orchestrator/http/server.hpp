// HTTP/1.1 over TCP: listens, accepts connections (connection.hpp) and ends them. One thread.
//
// Limits: 16 KiB for a head (431); the configured size for a body (413); 15 s for a head and 60 s for a body, of
// which each 10 s must bring 8 KiB (408); 75 s idle between requests; 2048 connections, or half of the descriptors
// that the process may have. One more connection ends the one that has waited longest for a request's whole head,
// or gets 503; the last 16 places are reserved for the operator's endpoints. All bodies and unsent answers share one
// budget (memory_budget.hpp): when it is spent, the largest unfinished body gets 503. If a client does not read, up to
// 1 MiB of its stream is kept; beyond that its sequences are cancelled and the connection ends. The connection also
// ends when nothing at all could be written for 30 s. Other streams never wait for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "orchestrator/event_loop.hpp"
#include "orchestrator/http/exchange.hpp"

namespace bulkhead::orchestrator {

class Api;

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free port
  std::size_t max_body_bytes = 16U << 20;
  std::size_t max_memory_bytes = std::size_t{512} << 20;
};

class Server {
 public:
  explicit Server(EventLoop& loop, ServerOptions options);
  ~Server();

  // Listens at the options' host and port. The server accepts connections once serve() has been called.
  Status listen();
  // Serves at the first socket of `passed` that listens, and closes the others. This socket's address counts, not the
  // options'. Returns kInvalidArgument if no socket listens, or if server.host says that only this machine can reach
  // the server and the socket's address says otherwise, or the reverse: the checks of keys and of names in requests go
  // by server.host.
  Status listen_at(std::vector<UniqueFd> passed);
  std::uint16_t port() const;
  void serve(Api& api);
  std::size_t connections() const;
  // Applies to requests that come from now on.
  void set_limits(std::size_t max_body_bytes, std::size_t max_memory_bytes);

  struct Figures {
    std::size_t memory_bytes = 0, most_memory_bytes = 0;
    std::uint64_t bad_framing = 0, no_memory = 0, slow_senders = 0, exceptions = 0;
    std::uint64_t refused = 0;      // connections for which there was no place
    std::uint64_t idle_closed = 0;  // idle connections that were ended to make place
  };
  Figures figures() const;

  // Ends each connection once its answer has been sent; calls `closed` when none is left, or after five seconds.
  void close(std::function<void()> closed);

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace bulkhead::orchestrator
