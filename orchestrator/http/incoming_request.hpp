// What a connection makes of the bytes that it has read: the request that a head asks, and the body
// while it arrives. Knows nothing of sockets.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/base/error.hpp"
#include "orchestrator/http/chunked_body.hpp"
#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/request_head.hpp"

namespace bulkhead::orchestrator {

// The request of a head, without its body. Empty: the target has a broken percent escape.
std::optional<HttpRequest> request_of(const RequestHead& head);

// Whether the path is one that must be answered when the server is full.
bool is_for_operators(std::string_view path);

// The body of one request while it arrives: where it ends, and whether it arrives fast enough. The
// default is a body of no bytes.
class IncomingBody {
 public:
  using Clock = std::chrono::steady_clock;
  // A body has to bring a few KiB in each of these.
  static constexpr std::chrono::seconds kWindow{10};

  IncomingBody() = default;
  // The body that `head` announces, of which the first byte is expected at `now`.
  IncomingBody(const RequestHead& head, Clock::time_point now);

  // Takes what it can of the bytes, appends the body's to `body`, and says how many it has taken.
  // Errors are those of ChunkedBody::take(); a body with a length has none.
  Result<std::size_t> take(std::string_view bytes, std::string& body, std::size_t most_bytes);
  bool done() const { return chunks_.has_value() ? chunks_->done() : left_ == 0; }

  // Counts bytes that the client has sent.
  void received(std::size_t bytes) { bytes_in_window_ += bytes; }
  // To be called when a window is over. False: the body is too slow, and is not waited for.
  bool next_window(Clock::time_point now);

 private:
  std::optional<ChunkedBody> chunks_;  // of a body that comes in chunks
  std::uint64_t left_ = 0;             // of a body that has a length
  Clock::time_point deadline_{};
  std::size_t bytes_in_window_ = 0;
};

}  // namespace bulkhead::orchestrator
