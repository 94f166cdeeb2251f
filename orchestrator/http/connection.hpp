// One client's connection: it reads requests within their limits, passes them to the Api, writes answers and streams,
// and notices a client that is gone or too slow. The server accepts connections and ends them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <boost/asio/ip/tcp.hpp>

#include "orchestrator/event_loop.hpp"
#include "orchestrator/http/memory_budget.hpp"

namespace bulkhead::orchestrator {

class Api;
class Connection;

// The server, as its connections see it.
struct ConnectionOwner {
  ConnectionOwner(EventLoop& the_loop, std::size_t the_max_body_bytes, std::size_t max_memory)
      : loop(the_loop), max_body_bytes(the_max_body_bytes), memory(max_memory) {}
  virtual ~ConnectionOwner() = default;
  virtual void connection_gone(const std::shared_ptr<Connection>& connection) = 0;
  // Ends the largest unfinished body, because the budget is spent; that may be the caller's own. Returns false if
  // there is none.
  virtual bool end_largest_body() = 0;
  // Calls send_now() at the end of the event loop's present turn.
  virtual void send_after_this(std::shared_ptr<Connection> connection) = 0;

  EventLoop& loop;
  Api* api = nullptr;
  std::size_t max_body_bytes;
  MemoryBudget memory;
  struct Figures {
    std::uint64_t bad_framing = 0;   // heads and bodies that broke a rule of HTTP
    std::uint64_t no_memory = 0;     // requests that the budget refused
    std::uint64_t slow_senders = 0;  // heads and bodies that took too long
    std::uint64_t exceptions = 0;    // connections that an exception ended
  } figures;
  bool closing = false;  // the server finishes answers and reads no further requests
};

class Connection {
 public:
  virtual ~Connection() = default;
  // Reads the first request. `operators_only`: there is no room for other requests.
  virtual void begin(bool operators_only) = 0;
  virtual void refuse_for_overload() = 0;  // answers 503; called instead of begin()
  virtual void close_when_idle() = 0;      // ends as soon as nothing is being answered
  virtual void close_now() = 0;
  // Returns since when the connection has been waiting for a request's first byte, or after that for the
  // rest of its head; empty if it is not waiting.
  virtual std::optional<std::chrono::steady_clock::time_point> idle_since() const = 0;
  virtual std::size_t unfinished_body_bytes() const = 0;
  virtual void refuse_for_memory() = 0;  // ends an unfinished body with 503
  virtual void send_now() = 0;           // sends what the turn has added to a stream
};

std::shared_ptr<Connection> make_connection(std::shared_ptr<ConnectionOwner> server,
                                            boost::asio::ip::tcp::socket socket);

}  // namespace bulkhead::orchestrator
