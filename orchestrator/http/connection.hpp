// One client's connection: reads requests within their limits, hands them to the Api, writes answers
// and streams, notices a client that is gone or too slow. For the server, which accepts them and ends
// them.
#pragma once

#include <cstddef>
#include <memory>

#include <boost/asio/ip/tcp.hpp>

#include "orchestrator/event_loop.hpp"

namespace bulkhead::orchestrator {

class Api;
class Connection;

// The server, as its connections see it.
struct ConnectionOwner {
  ConnectionOwner(EventLoop& the_loop, std::size_t the_max_body_bytes)
      : loop(the_loop), max_body_bytes(the_max_body_bytes) {}
  virtual ~ConnectionOwner() = default;
  virtual void connection_gone(const std::shared_ptr<Connection>& connection) = 0;
  // Calls send_now() once the event loop's turn is over.
  virtual void send_after_this(std::shared_ptr<Connection> connection) = 0;

  EventLoop& loop;
  Api* api = nullptr;
  std::size_t max_body_bytes;
  bool closing = false;  // answers are finished, no further request is read
};

class Connection {
 public:
  virtual ~Connection() = default;
  virtual void begin() = 0;                // reads the first request
  virtual void refuse_for_overload() = 0;  // instead: answers 503
  virtual void close_when_idle() = 0;      // ends as soon as nothing is being answered
  virtual void close_now() = 0;
  virtual void send_now() = 0;  // what a turn has brought for a stream
};

std::shared_ptr<Connection> make_connection(std::shared_ptr<ConnectionOwner> server,
                                            boost::asio::ip::tcp::socket socket);

}  // namespace bulkhead::orchestrator
