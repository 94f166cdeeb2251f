// Turns the bytes that a connection has read into the request that a head describes, and into the body while it
// arrives. Nothing here uses sockets.
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

// Makes the request that a head describes, without its body. Returns nothing if the target has a broken percent
// escape.
std::optional<HttpRequest> request_of(const RequestHead& head);

// Returns "/v1/models" for "//v1//models/", because base URLs often get slashes at their ends.
std::string without_slips(std::string_view path);

// Returns how many parts both paths begin with: 1 for "/api/chat" and "/api/blobs".
std::size_t shared_parts(std::string_view a, std::string_view b);

// Returns whether the server must answer this path even when it is full.
bool is_for_operators(std::string_view path);

// The body of one request while it arrives. It finds the body's end, and decides whether the body arrives fast
// enough. A default body has no bytes.
class IncomingBody {
 public:
  using Clock = std::chrono::steady_clock;
  // In each window of this length a body must bring a few KiB.
  static constexpr std::chrono::seconds kWindow{10};

  IncomingBody() = default;
  // Makes the body that `head` announces; its first byte is expected at `now`.
  IncomingBody(const RequestHead& head, Clock::time_point now);

  // Takes as many of the bytes as it can, appends the body's bytes to `body`, and returns how many it took. Its
  // errors are those of ChunkedBody::take(); a body with a length causes none.
  Result<std::size_t> take(std::string_view bytes, std::string& body, std::size_t most_bytes);
  bool done() const { return chunks_.has_value() ? chunks_->done() : left_ == 0; }

  // Counts bytes that the client has sent.
  void received(std::size_t bytes) { bytes_in_window_ += bytes; }
  // Call it at the end of each window. Returns false if the body is too slow.
  bool next_window(Clock::time_point now);

 private:
  std::optional<ChunkedBody> chunks_;  // the state of a body that comes in chunks
  std::uint64_t left_ = 0;             // missing bytes of a body that has a length
  Clock::time_point deadline_{};
  std::size_t bytes_in_window_ = 0;
};

}  // namespace bulkhead::orchestrator
