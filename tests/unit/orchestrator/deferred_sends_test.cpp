// The connections that have bytes to send at the end of a turn of the event loop.
#include "orchestrator/http/deferred_sends.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

// Counts the calls that it gets. If it lacks memory, send_now() throws.
struct CountingConnection final : Connection {
  void begin(bool) override {}
  void refuse_for_overload() override {}
  void close_when_idle() override {}
  void close_now() override { ++closed; }
  std::optional<std::chrono::steady_clock::time_point> idle_since() const override {
    return std::nullopt;
  }
  std::size_t unfinished_body_bytes() const override { return 0; }
  void refuse_for_memory() override {}
  void send_now() override {
    ++sent;
    if (lacks_memory) throw std::bad_alloc();
  }

  bool lacks_memory = false;
  int sent = 0, closed = 0;
};

TEST(DeferredSends, AConnectionThatThrowsEndsAlone) {
  EventLoop loop;
  DeferredSends sends(loop);
  std::array<std::shared_ptr<CountingConnection>, 3> connections;
  for (auto& each : connections)
    each = std::make_shared<CountingConnection>();
  connections[1]->lacks_memory = true;
  for (int turn = 0; turn < 2; ++turn) {
    loop.post([&, turn] {
      for (const auto& each : connections) {
        if (each->closed == 0) sends.add(each);
        EXPECT_EQ(each->sent, turn) << "before the turn's end";
      }
    });
  }
  loop.run();
  EXPECT_EQ(loop.figures().exceptions, 1U);
  for (std::size_t i = 0; i < connections.size(); ++i) {
    EXPECT_EQ(connections[i]->sent, i == 1 ? 1 : 2) << i;
    EXPECT_EQ(connections[i]->closed, i == 1 ? 1 : 0) << i;
  }
}

}  // namespace
}  // namespace bulkhead::orchestrator
