#include "orchestrator/http/connection.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/status.hpp>

#include "config/base/log.hpp"
#include "config/base/text.hpp"
#include "orchestrator/http/api.hpp"
#include "orchestrator/http/chunked_body.hpp"
#include "orchestrator/http/request_head.hpp"
#include "orchestrator/memory_reserve.hpp"

namespace bulkhead::orchestrator {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::seconds;

namespace {

constexpr std::uint32_t kMaxHeadBytes = 16 * 1024;
constexpr std::size_t kMaxUnsentStreamBytes = 1024 * 1024;
constexpr std::size_t kWriteSliceBytes = 64 * 1024;
constexpr std::size_t kMaxReadAheadBytes =
    64 * 1024;  // of a next request, while this one is answered
constexpr std::size_t kMaxDiscardedBytes = 64 * 1024 * 1024;
constexpr std::size_t kReadBytes = 64 * 1024;
constexpr seconds kIdleTimeout{75};
constexpr seconds kHeadTimeout{15};
constexpr seconds kBodyTimeout{60};
// A body that brings less than this in each such time is not waited for.
constexpr seconds kBodyWindow{10};
constexpr std::size_t kLeastBodyBytesInWindow = 8 * 1024;
constexpr seconds kWriteTimeout{30};
constexpr seconds kLingerTimeout{2};

// The path of a target, percent-decoded; nothing when an escape is broken.
std::optional<std::string> decode_path(std::string_view target) {
  if (target.starts_with("http://") ||
      target.starts_with("https://")) {  // absolute form, as proxies send it
    std::size_t slash = target.find('/', target.find("//") + 2);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path += target[i];
      continue;
    }
    if (i + 2 >= target.size()) return std::nullopt;
    int high = digit(target[i + 1]), low = digit(target[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    path += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return path;
}

// What must answer when the house is full.
bool is_for_operators(std::string_view path) {
  constexpr std::array<std::string_view, 4> kPaths = {"/health", "/livez", "/readyz", "/metrics"};
  return std::ranges::find(kPaths, path) != kPaths.end() || path == "/v1/workers" ||
         path.starts_with("/v1/workers/");
}

// With its memory, which an assignment keeps.
void give_back(std::string& text) {
  std::string().swap(text);
}

const char* reason_of(int status) {
  auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return reason.data();  // literals, ended by a zero
}

// Reads one request at a time; while it is answered, only watches for the client's end. All output
// goes through `unsent_`.
class ClientConnection final : public Connection,
                               public Exchange,
                               public std::enable_shared_from_this<ClientConnection> {
 public:
  ClientConnection(std::shared_ptr<ConnectionOwner> server, tcp::socket socket)
      : server_(std::move(server)),
        socket_(std::move(socket)),
        read_timer_(server_->loop),
        write_timer_(server_->loop) {}
  ~ClientConnection() override { hold(0); }

  void begin(bool operators_only) override {
    operators_only_ = operators_only;
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);  // send_now() must not wait for a client
    read_head();
  }

  void refuse_for_overload() override {
    answering_ = true;
    refuse(kTooManyConnections, "The server has too many connections.");
  }

  std::optional<std::chrono::steady_clock::time_point> idle_since() const override {
    if (!idle_ || closed_) return std::nullopt;
    return idle_since_;
  }

  std::size_t unfinished_body_bytes() const override {
    return reading_body_ && !closed_ ? request_.body.size() : 0;
  }

  void refuse_for_memory() override {
    ++server_->figures.no_memory;
    stop_reading_body();
    refuse(kOutOfMemory, "The server has no memory for this request now (server.max_memory_mb).");
  }

  void close_when_idle() override {
    close_after_answer_ = true;
    if (!answering_ && unsent_.empty()) close_now();
  }

  void close_now() override {
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

  // ---- Exchange ----

  void respond(HttpResponse response) override {
    if (closed_ || !answering_) return;
    if (response.close) close_after_answer_ = true;
    bool bodyless = response.status == 204 || response.status == 304;
    std::string head =
        fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_of(response.status));
    if (!bodyless) {
      head += "Content-Type: " + response.content_type + "\r\n";
      head += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
    }
    for (const auto& [name, value] : response.headers)
      head += name + ": " + value + "\r\n";
    for (const auto& [name, value] : extra_headers)
      head += name + ": " + value + "\r\n";
    head += connection_field();
    head += "\r\n";
    unsent_ += head;
    if (!bodyless && !head_only_) unsent_ += response.body;
    finish_answer();
  }

  void begin_stream(std::string_view request_id, std::string_view content_type) override {
    if (closed_ || !answering_) return;
    chunked_ = request_http_1_1_;  // HTTP/1.0 knows the end of a stream by the connection's
    // A stream is the last on its connection even where its end is marked. Clients over node-fetch
    // 2, OpenAI's for JavaScript among them, take a stream for broken off ("Premature close") when
    // Node.js puts a guard on the connection that it keeps, as Debian 12's 18.20.4 and others do:
    // https://github.com/nodejs/node/issues/63989
    close_after_answer_ = true;
    unsent_ += fmt::format(
        "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nCache-Control: no-cache\r\n"
        "X-Accel-Buffering: no\r\n",
        content_type);
    if (!request_id.empty()) unsent_ += fmt::format("X-Request-Id: {}\r\n", request_id);
    for (const auto& [name, value] : extra_headers)
      unsent_ += name + ": " + value + "\r\n";
    if (chunked_) unsent_ += "Transfer-Encoding: chunked\r\n";
    unsent_ += connection_field();
    unsent_ += "\r\n";
    streaming_ = true;
    largest_write_ = 0;
    pump();
  }

  void write(std::string_view events) override {
    if (closed_ || !streaming_ || too_slow_ || events.empty()) return;
    if (chunked_) {
      fmt::format_to(std::back_inserter(unsent_), "{:x}\r\n", events.size());
      unsent_ += events;
      unsent_ += "\r\n";
    } else {
      unsent_ += events;
    }
    const bool fits = unsent_.size() < kWriteSliceBytes || hold(unsent_.size() + kept_body_);
    // A client is not slow because one write has much.
    largest_write_ = std::max(largest_write_, events.size());
    if (!fits || unsent_.size() - in_flight_ > kMaxUnsentStreamBytes + largest_write_) {
      too_slow_ = true;
      // In a turn of its own: the caller is in the middle of something.
      asio::post(socket_.get_executor(), [self = shared_from_this()] { self->give_up(); });
      return;
    }
    if (unsent_.size() >= kWriteSliceBytes) return pump();
    // What the records of one turn bring goes out together, when the turn is over.
    if (std::exchange(to_send_, true)) return;
    server_->send_after_this(shared_from_this());
  }

  // The stream's new bytes, in one call of the system: they nearly always fit the socket's buffer,
  // and then nothing is copied, no timer runs and no completion is waited for.
  void send_now() override {
    to_send_ = false;
    if (closed_ || too_slow_ || in_flight_ > 0 || unsent_.empty()) return;
    error_code error;
    const std::size_t sent = socket_.write_some(asio::buffer(unsent_), error);
    if (error && error != asio::error::would_block) return close_now();
    if (sent == unsent_.size()) {
      unsent_.clear();
      return;
    }
    unsent_.erase(0, sent);
    pump();
  }

  void end_stream(bool close) override {
    if (closed_ || !streaming_ || too_slow_) return;
    if (close) close_after_answer_ = true;
    if (chunked_) unsent_ += "0\r\n\r\n";
    finish_answer();
  }

  std::size_t unsent_bytes() const override { return unsent_.size(); }

 private:
  // In the form of the protocol that the path belongs to.
  void refuse(const ErrorKind& kind, const std::string& message) {
    respond(server_->api->protocol_error(kind, message, path_));
  }

  std::string connection_field() const {
    if (close_after_answer_ || !keep_alive_) return "Connection: close\r\n";
    return request_http_1_1_ ? "" : "Connection: keep-alive\r\n";
  }

  // ---- reading ----

  // Every handler goes through here: an exception, for want of memory for example, ends its
  // connection and nothing else.
  template <typename Handle>
  void guarded(const char* doing, Handle handle) {
    server_->loop.call(doing, [&] {
      try {
        handle();
      } catch (const std::exception& error) {
        ++server_->figures.exceptions;
        give_back(request_.body);
        give_back(unsent_);
        spdlog::error("a connection is ended by an exception: {}", error.what());
        give_up();
        MemoryReserve::refill();
      }
    });
  }

  bool hold(std::size_t bytes) { return server_->memory.change(held_, bytes, for_operators_); }

  void read_head() {
    if (closed_) return;
    if (close_after_answer_ || server_->closing) return close_now();
    keep_alive_ = false;
    request_http_1_1_ = true;
    for_operators_ = false;
    head_only_ = false;
    path_.clear();
    if (buffer_.size() > 0) return continue_head();
    // Idle until the first byte; then the whole head has its own, shorter time.
    idle_ = true;
    idle_since_ = std::chrono::steady_clock::now();
    read_timer_.start(kIdleTimeout, [this] { close_now(); });
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      self->guarded("the beginning of a request", [&] {
        if (self->closed_) return;
        if (error) return self->close_now();
        self->idle_ = false;
        self->read_more_of_head();
      });
    });
  }

  std::string_view buffered() const {
    return {static_cast<const char*>(buffer_.data().data()), buffer_.size()};
  }

  void continue_head() {
    read_timer_.start(kHeadTimeout, [this] { too_slow_a_sender(); });
    look_for_head();
  }

  void read_more_of_head() {
    if (!read_timer_.running() || buffer_.size() == 0)
      read_timer_.start(kHeadTimeout, [this] { too_slow_a_sender(); });
    socket_.async_read_some(buffer_.prepare(4096),
                            [self = shared_from_this()](error_code error, std::size_t bytes) {
                              self->guarded("a request's head", [&] {
                                if (self->closed_) return;
                                self->buffer_.commit(bytes);
                                if (error) return self->close_now();
                                self->look_for_head();
                              });
                            });
  }

  void look_for_head() {
    const Result<std::size_t> bytes = head_bytes(buffered());
    if (!bytes.ok()) return bad_request(bytes.error().message());
    if (*bytes > kMaxHeadBytes || (*bytes == 0 && buffer_.size() >= kMaxHeadBytes)) {
      answering_ = true;
      return refuse(kHeadersTooLarge,
                    fmt::format("The request's head is larger than {} bytes.", kMaxHeadBytes));
    }
    if (*bytes == 0) return read_more_of_head();
    read_timer_.cancel();
    Result<RequestHead> head = parse_head(buffered().substr(0, *bytes));
    if (!head.ok()) return bad_request(head.error().message());
    buffer_.consume(*bytes);
    head_read(*head);
  }

  // What can't be read in one way alone is the last thing that is read on its connection.
  void bad_request(const std::string& rule) {
    ++server_->figures.bad_framing;
    stop_reading_body();
    refuse(kBadRequest, "This is not a valid HTTP/1.1 request: " + rule + ".");
  }

  void too_slow_a_sender() {
    ++server_->figures.slow_senders;
    stop_reading_body();
    refuse(kTooSlow, "The request did not arrive in time.");
  }

  // From here on only an answer can follow.
  void stop_reading_body() {
    read_timer_.cancel();
    reading_body_ = false;
    answering_ = true;
    request_ = {};
    give_back(request_.body);
    buffer_.shrink_to_fit();
    hold(0);
    kept_body_ = 0;
  }

  void head_read(const RequestHead& head) {
    request_http_1_1_ = head.minor_version >= 1;
    keep_alive_ = head.keep_alive();
    head_only_ = head.method == "HEAD";
    answering_ = true;

    HttpRequest request;
    request.method = head.method;
    request.http_1_1 = request_http_1_1_;
    request.has_body = head.has_body();
    request.hosts = static_cast<int>(head.count("Host"));
    request.host = head.field("Host");
    request.origin = head.field("Origin");
    request.authorization = head.field("Authorization");
    // Where Anthropic's clients have the key.
    if (const auto key = head.field("X-Api-Key"); request.authorization.empty() && !key.empty())
      request.authorization = "Bearer " + std::string(key);
    request.last_event_id = head.field("Last-Event-ID");
    request.if_none_match = head.field("If-None-Match");
    request.cors_method = head.field("Access-Control-Request-Method");
    request.cors_headers = head.field("Access-Control-Request-Headers");
    std::optional<std::string> path = decode_path(head.target);
    if (!path) return refuse(kBadRequest, "The request's target has a broken percent escape.");
    request.path = *std::move(path);
    path_ = request.path;
    for_operators_ = is_for_operators(request.path);
    if (operators_only_ && !for_operators_) return refuse_for_overload();

    extra_headers.clear();  // of the request before
    if (std::optional<HttpResponse> answer = server_->api->answer_head(request)) {
      if (request.has_body) answer->close = true;  // its body stays unread
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
      unsent_ += "HTTP/1.1 100 Continue\r\n\r\n";
      pump();
    }
    reading_body_ = true;
    chunks_.reset();
    if (head.chunked) chunks_.emplace();
    body_left_ = head.content_length.value_or(0);
    body_deadline_ = std::chrono::steady_clock::now() + kBodyTimeout;
    body_bytes_in_window_ = 0;
    watch_body_speed();
    take_body();
  }

  void body_too_large() {
    stop_reading_body();
    refuse(kBodyTooLarge, fmt::format("The body is larger than {} bytes (server.max_body_mb).",
                                      server_->max_body_bytes));
  }

  void watch_body_speed() {
    read_timer_.start(kBodyWindow, [this] {
      const bool late = std::chrono::steady_clock::now() >= body_deadline_;
      if (late || body_bytes_in_window_ < kLeastBodyBytesInWindow) return too_slow_a_sender();
      body_bytes_in_window_ = 0;
      watch_body_speed();
    });
  }

  // What has been received, as far as it is this body's.
  void take_body() {
    const std::string_view bytes = buffered();
    std::size_t taken = 0;
    if (!hold_body(request_.body.size() + bytes.size())) return;
    if (chunks_.has_value()) {
      const Result<std::size_t> got = chunks_->take(bytes, request_.body, server_->max_body_bytes);
      if (!got.ok() && got.error().code() == ErrorCode::kResourceExhausted) return body_too_large();
      if (!got.ok()) return bad_request(got.error().message());
      taken = *got;
    } else {
      taken = static_cast<std::size_t>(std::min<std::uint64_t>(body_left_, bytes.size()));
      request_.body.append(bytes.substr(0, taken));
      body_left_ -= taken;
    }
    buffer_.consume(taken);
    if (chunks_.has_value() ? chunks_->done() : body_left_ == 0) return body_read();
    socket_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = shared_from_this()](error_code error, std::size_t got) {
                              self->guarded("a request's body", [&] {
                                if (self->closed_ || !self->reading_body_) return;
                                self->buffer_.commit(got);
                                self->body_bytes_in_window_ += got;
                                if (error) return self->close_now();
                                self->take_body();
                              });
                            });
  }

  // The body's bytes, and as many again that its string may have made room for. False: there is no
  // room, and this connection has been told so.
  bool hold_body(std::size_t bytes) {
    while (reading_body_ && !closed_ && !hold(2 * bytes)) {
      if (!server_->end_largest_body()) refuse_for_memory();
    }
    kept_body_ = 2 * bytes;
    return reading_body_ && !closed_;
  }

  void body_read() {
    read_timer_.cancel();
    reading_body_ = false;
    watch_for_end();
    server_->api->handle(std::exchange(request_, {}), shared_from_this());
  }

  // While an answer is being made: an end of file or a reset means that nobody waits for it. What a
  // client sends ahead is kept, within bounds, so that the end behind it is seen too.
  void watch_for_end() {
    if (closed_ || buffer_.size() >= kMaxReadAheadBytes) return;
    watching_ = true;
    socket_.async_read_some(buffer_.prepare(4096),
                            [self = shared_from_this()](error_code error, std::size_t bytes) {
                              self->guarded("a client's end", [&] {
                                self->watching_ = false;
                                if (self->closed_) return;
                                self->buffer_.commit(bytes);
                                if (error && error != asio::error::operation_aborted) {
                                  self->client_ended_ = true;
                                  // While the last bytes of an answer are on their way, their handler
                                  // ends the connection.
                                  if (self->answering_ || self->next_after_watch_)
                                    self->close_now();
                                  return;
                                }
                                if (self->next_after_watch_) {
                                  self->next_after_watch_ = false;
                                  return self->read_head();
                                }
                                if (self->answering_) self->watch_for_end();
                              });
                            });
  }

  // ---- writing ----

  void finish_answer() {
    answering_ = false;
    streaming_ = false;
    on_lost = nullptr;
    kept_body_ = 0;
    if (!hold(unsent_.size() < kWriteSliceBytes ? 0 : unsent_.size())) {
      too_slow_ = true;
      asio::post(socket_.get_executor(), [self = shared_from_this()] { self->give_up(); });
      return;
    }
    pump();
  }

  void pump() {
    if (closed_ || in_flight_ > 0) return;
    if (unsent_.empty()) {
      if (!answering_) answer_out();
      return;
    }
    // The bytes on their way stay where they are: new ones gather in a buffer of their own.
    flight_.assign(unsent_, 0, kWriteSliceBytes);
    in_flight_ = flight_.size();
    write_timer_.start(kWriteTimeout, [this] { give_up(); });
    asio::async_write(socket_, asio::buffer(flight_),
                      [self = shared_from_this()](error_code error, std::size_t) {
                        self->guarded("writing an answer", [&] {
                          if (self->closed_) return;
                          self->write_timer_.cancel();
                          if (error) return self->close_now();
                          self->unsent_.erase(0, std::exchange(self->in_flight_, 0));
                          if (self->held_ > self->unsent_.size() + self->kept_body_)
                            self->hold(self->unsent_.size() + self->kept_body_);
                          self->pump();
                        });
                      });
  }

  void answer_out() {
    if (close_after_answer_ || !keep_alive_ || client_ended_ || server_->closing) return linger();
    if (watching_) {
      next_after_watch_ = true;
      error_code ignored;
      socket_.cancel(ignored);
      return;
    }
    read_head();
  }

  // Ends our side and reads the client's to its end, so that the kernel does not throw the answer
  // away with a reset.
  void linger() {
    if (closed_ || lingering_) return;
    lingering_ = true;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    if (client_ended_) return close_now();
    read_timer_.start(kLingerTimeout, [this] { close_now(); });
    discard();
  }

  void discard() {
    if (watching_) {  // one read at a time: its handler gives up, then this begins
      error_code ignored;
      socket_.cancel(ignored);
      asio::post(socket_.get_executor(), [self = shared_from_this()] {
        if (!self->closed_) self->discard();
      });
      return;
    }
    buffer_.clear();
    socket_.async_read_some(buffer_.prepare(kWriteSliceBytes),
                            [self = shared_from_this()](error_code error, std::size_t bytes) {
                              self->guarded("the rest of a request", [&] {
                                if (self->closed_) return;
                                self->discarded_ += bytes;
                                if (error || self->discarded_ > kMaxDiscardedBytes)
                                  return self->close_now();
                                self->discard();
                              });
                            });
  }

  // On a client that does not read: without waiting for what is unsent.
  void give_up() {
    if (closed_) return;
    auto lost = std::exchange(on_lost, nullptr);
    if (answering_ && lost) lost(Lost::kTooSlow);
    error_code ignored;
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    close_now();
  }

  std::shared_ptr<ConnectionOwner> server_;
  tcp::socket socket_;
  Timer read_timer_, write_timer_;
  beast::flat_buffer buffer_;
  HttpRequest request_;
  std::string path_;                   // of the request that is read or answered; empty: not known
  std::optional<ChunkedBody> chunks_;  // of a body that comes in chunks
  std::uint64_t body_left_ = 0;        // of one that has a length
  std::size_t body_bytes_in_window_ = 0;
  std::chrono::steady_clock::time_point body_deadline_, idle_since_;
  std::size_t held_ = 0;       // of the server's memory budget
  std::size_t kept_body_ = 0;  // of this for the body, until its answer is out

  std::string unsent_;  // the first in_flight_ bytes of it are being written, from flight_
  std::string flight_;
  std::size_t in_flight_ = 0;
  std::size_t largest_write_ = 0;  // of this stream, in bytes
  std::size_t discarded_ = 0;

  bool operators_only_ = false;
  bool for_operators_ = false;  // the request
  bool idle_ = false;           // waits for a request's first byte
  bool reading_body_ = false;
  bool request_http_1_1_ = true;
  bool keep_alive_ = false;
  bool head_only_ = false;
  bool chunked_ = false;
  bool answering_ = false;  // a request has been read, and its answer is not complete
  bool streaming_ = false;
  bool too_slow_ = false;
  bool to_send_ = false;  // send_now() will be called
  bool watching_ = false;
  bool next_after_watch_ = false;
  bool client_ended_ = false;
  bool close_after_answer_ = false;
  bool lingering_ = false;
  bool closed_ = false;
};

}  // namespace

std::shared_ptr<Connection> make_connection(std::shared_ptr<ConnectionOwner> server,
                                            tcp::socket socket) {
  return std::make_shared<ClientConnection>(std::move(server), std::move(socket));
}

}  // namespace bulkhead::orchestrator
