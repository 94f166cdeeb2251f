// HTTP/1.1 over TCP: listens, accepts connections (connection.hpp) and ends them. One thread.
//
// Limits: 16 KiB of head (431), the configured body (413), 15 s for a head and 60 s for a body, 75
// s idle between requests, 1024 connections (more get 503). A client that does not read: up to 1
// MiB of its stream is kept; beyond that its sequences are cancelled and the connection ends; so it
// does when nothing at all could be written for 30 s. Other streams never wait for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "config/base/error.hpp"
#include "orchestrator/event_loop.hpp"
#include "orchestrator/http/exchange.hpp"

namespace bulkhead::orchestrator {

class Api;

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: a free one
  std::size_t max_body_bytes = 16U << 20;
};

class Server {
 public:
  explicit Server(EventLoop& loop, ServerOptions options);
  ~Server();

  // Binds; connections are accepted once serve() has been called.
  Status listen();
  std::uint16_t port() const;
  void serve(Api& api);
  std::size_t connections() const;
  void set_max_body_bytes(std::size_t bytes);  // of requests that come from now on

  // Ends each connection once its answer is out; `closed` is called when none is left, or after
  // five seconds.
  void close(std::function<void()> closed);

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace bulkhead::orchestrator
