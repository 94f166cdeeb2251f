#include "orchestrator/http/connection.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/text.hpp"
#include "orchestrator/http/api.hpp"
#include "orchestrator/http/client_connection.hpp"
#include "orchestrator/memory_reserve.hpp"

namespace bulkhead::orchestrator {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::seconds;

namespace {

constexpr std::uint32_t kMaxHeadBytes = 16 * 1024;
constexpr std::size_t kMaxReadAheadBytes =
    64 * 1024;  // most bytes of the next request, kept while this request is answered
constexpr std::size_t kReadBytes = 64 * 1024;
constexpr seconds kIdleTimeout{75};
constexpr seconds kHeadTimeout{15};

// Frees the text's memory; an assignment would keep the memory.
void give_back(std::string& text) {
  std::string().swap(text);
}

}  // namespace

void ClientConnection::begin(bool operators_only) {
  operators_only_ = operators_only;
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);  // send_now() must not wait for a client
  read_head();
}

void ClientConnection::refuse_for_overload() {
  answering_ = true;
  refuse(kTooManyConnections, "The server has too many connections.");
}

void ClientConnection::refuse_for_memory() {
  ++server_->figures.no_memory;
  stop_reading();
  refuse(kOutOfMemory, "The server has no memory for this request now (server.max_memory_mb).");
}

void ClientConnection::close_when_idle() {
  close_after_answer_ = true;
  if (!answering_ && unsent_.empty()) close_now();
}

void ClientConnection::close_now() {
  if (closed_) return;
  closed_ = true;
  hold(0);
  read_timer_.cancel();
  write_timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  auto lost = std::exchange(on_lost, nullptr);
  if (answering_ && lost) lost(Lost::kHungUp);
  server_->connection_gone(shared_from_this());
}

void ClientConnection::ended_by(const std::exception& error) {
  ++server_->figures.exceptions;
  give_back(request_.body);
  unsent_ = {};
  spdlog::error("a connection is ended by an exception: {}", error.what());
  give_up();
  MemoryReserve::refill();
}

// ---- reading ----

void ClientConnection::refuse(const ErrorKind& kind, const std::string& message) {
  respond(server_->api->protocol_error(kind, message, path_, *this));
}

void ClientConnection::read_head() {
  if (closed_) return;
  if (close_after_answer_ || server_->closing) return close_now();
  keep_alive_ = false;
  request_http_1_1_ = true;
  for_operators_ = false;
  head_only_ = false;
  path_.clear();
  forget_request();
  idle_ = true;
  idle_since_ = std::chrono::steady_clock::now();
  if (buffer_.size() > 0) return continue_head();
  // After the first byte the whole head has its own, shorter time.
  read_timer_.start(kIdleTimeout, [this] { close_now(); });
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    self->guarded("the beginning of a request", [&] {
      if (self->closed_) return;
      if (error) return self->close_now();
      self->idle_since_ = std::chrono::steady_clock::now();
      self->read_more_of_head();
    });
  });
}

void ClientConnection::continue_head() {
  read_timer_.start(kHeadTimeout, [this] { too_slow_a_sender(); });
  look_for_head();
}

void ClientConnection::read_more_of_head() {
  if (!read_timer_.running() || buffer_.size() == 0)
    read_timer_.start(kHeadTimeout, [this] { too_slow_a_sender(); });
  read_some("a request's head", 4096, [this](error_code error, std::size_t bytes) {
    buffer_.commit(bytes);
    if (error) return close_now();
    look_for_head();
  });
}

void ClientConnection::look_for_head() {
  const Result<std::size_t> bytes = head_bytes(buffered());
  if (!bytes.ok()) return bad_request(bytes.error().message());
  if (*bytes > kMaxHeadBytes || (*bytes == 0 && buffer_.size() >= kMaxHeadBytes)) {
    stop_reading();
    return refuse(kHeadersTooLarge,
                  fmt::format("The request's head is larger than {} bytes.", kMaxHeadBytes));
  }
  if (*bytes == 0) return read_more_of_head();
  idle_ = false;
  read_timer_.cancel();
  Result<RequestHead> head = parse_head(buffered().substr(0, *bytes));
  if (!head.ok()) return bad_request(head.error().message());
  buffer_.consume(*bytes);
  head_read(*head);
}

void ClientConnection::bad_request(const std::string& rule) {
  ++server_->figures.bad_framing;
  stop_reading();
  refuse(kBadRequest, "This is not a valid HTTP/1.1 request: " + rule + ".");
}

void ClientConnection::too_slow_a_sender() {
  ++server_->figures.slow_senders;
  stop_reading();
  refuse(kTooSlow, "The request did not arrive in time.");
}

void ClientConnection::stop_reading() {
  read_timer_.cancel();
  idle_ = false;
  reading_body_ = false;
  answering_ = true;
  request_ = {};
  give_back(request_.body);
  drop_read();
  hold(0);
  kept_body_ = 0;
}

void ClientConnection::drop_read() {
  read_is_dropped_ = reading_;
  if (!reading_) read_dropped();
}

void ClientConnection::read_dropped() {
  buffer_.clear();
  buffer_.shrink_to_fit();
  if (lingering_) discard();
}

void ClientConnection::head_read(const RequestHead& head) {
  request_http_1_1_ = head.minor_version >= 1;
  keep_alive_ = head.keep_alive();
  head_only_ = head.method == "HEAD";
  answering_ = true;

  std::optional<HttpRequest> incoming = request_of(head);
  if (!incoming) return refuse(kBadRequest, "The request's target has a broken percent escape.");
  HttpRequest request = *std::move(incoming);
  path_ = request.path;
  for_operators_ = is_for_operators(request.path);
  if (operators_only_ && !for_operators_) return refuse_for_overload();

  if (std::optional<HttpResponse> answer = server_->api->answer_head(request, *this)) {
    if (request.has_body) answer->close = true;  // nobody reads the request's body
    return respond(*std::move(answer));
  }
  if (const auto encoding = head.field("Content-Encoding");
      !encoding.empty() && lower(encoding) != "identity") {
    return refuse(
        kUnsupportedEncoding,
        "Bodies are taken as they are, not compressed: send none with a Content-Encoding.");
  }
  if (head.content_length.value_or(0) > server_->max_body_bytes) return body_too_large();
  request_ = std::move(request);
  if (const auto expect = head.field("Expect"); !expect.empty() && request_http_1_1_) {
    if (lower(expect) != "100-continue")
      return refuse(kExpectationFailed, "Only 100-continue can be expected.");
    unsent_.append("HTTP/1.1 100 Continue\r\n\r\n");
    pump();
  }
  reading_body_ = true;
  body_ = IncomingBody(head, std::chrono::steady_clock::now());
  watch_body_speed();
  take_body();
}

void ClientConnection::body_too_large() {
  stop_reading();
  refuse(kBodyTooLarge, fmt::format("The body is larger than {} bytes (server.max_body_mb).",
                                    server_->max_body_bytes));
}

void ClientConnection::watch_body_speed() {
  read_timer_.start(IncomingBody::kWindow, [this] {
    if (!body_.next_window(std::chrono::steady_clock::now())) return too_slow_a_sender();
    watch_body_speed();
  });
}

void ClientConnection::take_body() {
  const std::string_view bytes = buffered();
  if (!hold_body(request_.body.size() + bytes.size())) return;
  const Result<std::size_t> taken = body_.take(bytes, request_.body, server_->max_body_bytes);
  if (!taken.ok() && taken.error().code() == ErrorCode::kResourceExhausted) return body_too_large();
  if (!taken.ok()) return bad_request(taken.error().message());
  buffer_.consume(*taken);
  if (body_.done()) return body_read();
  read_some("a request's body", kReadBytes, [this](error_code error, std::size_t got) {
    buffer_.commit(got);
    body_.received(got);
    if (error) return close_now();
    take_body();
  });
}

bool ClientConnection::hold_body(std::size_t bytes) {
  while (reading_body_ && !closed_ && !hold(2 * bytes)) {
    if (!server_->end_largest_body()) refuse_for_memory();
  }
  kept_body_ = 2 * bytes;
  return reading_body_ && !closed_;
}

void ClientConnection::body_read() {
  read_timer_.cancel();
  // The bytes that the parser takes count as those of the body do.
  const std::size_t bytes = request_.body.size();
  const std::size_t parser = std::min(bytes_of_parser(bytes), server_->memory.total() / 4);
  if (parser > 0 && !hold_body(bytes + parser / 2)) return;
  reading_body_ = false;
  watch_for_end();
  server_->api->handle(std::exchange(request_, {}), shared_from_this());
}

void ClientConnection::watch_for_end() {
  if (closed_ || buffer_.size() >= kMaxReadAheadBytes) return;
  read_some("a client's end", 4096, [this](error_code error, std::size_t bytes) {
    buffer_.commit(bytes);
    if (error && error != asio::error::operation_aborted) {
      client_ended_ = true;
      // While the last bytes of an answer are being written, the handler of that write ends the
      // connection.
      if (answering_ || next_after_watch_) close_now();
      return;
    }
    if (std::exchange(next_after_watch_, false)) return read_head();
    if (answering_) watch_for_end();
  });
}

std::shared_ptr<Connection> make_connection(std::shared_ptr<ConnectionOwner> server,
                                            tcp::socket socket) {
  return std::make_shared<ClientConnection>(std::move(server), std::move(socket));
}

}  // namespace bulkhead::orchestrator
