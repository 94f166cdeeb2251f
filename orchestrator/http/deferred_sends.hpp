// The connections that have bytes of streams to send. All writes of one turn of the event loop go out together at its
// end, in one system call for each connection. One thread.
#pragma once

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "orchestrator/event_loop.hpp"
#include "orchestrator/http/connection.hpp"

namespace bulkhead::orchestrator {

class DeferredSends {
 public:
  explicit DeferredSends(EventLoop& loop) : loop_(loop) {}

  // Calls send_now() at the end of the event loop's present turn. If it throws an exception, that connection ends; the
  // bytes of the others are sent, now and later.
  void add(std::shared_ptr<Connection> connection) {
    if (!waiting_->empty()) return waiting_->push_back(std::move(connection));
    loop_.after_this([&loop = loop_, waiting = waiting_] {
      for (const auto& each : std::exchange(*waiting, {})) {
        try {
          each->send_now();
        } catch (const std::exception& error) {
          loop.caught("the sending of a stream's bytes", error);
          each->close_now();
        }
      }
    });
    waiting_->push_back(std::move(connection));
  }

 private:
  using Connections = std::vector<std::shared_ptr<Connection>>;
  EventLoop& loop_;
  std::shared_ptr<Connections> waiting_ = std::make_shared<Connections>();
};

}  // namespace bulkhead::orchestrator
