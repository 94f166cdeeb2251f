#include "orchestrator/http/connection.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "config/base/log.hpp"
#include "orchestrator/http/api.hpp"

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
constexpr seconds kIdleTimeout{75};
constexpr seconds kHeadTimeout{15};
constexpr seconds kBodyTimeout{60};
constexpr seconds kWriteTimeout{30};
constexpr seconds kLingerTimeout{2};

std::string to_string(beast::string_view text) {
  return {text.data(), text.size()};
}

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

  void begin() override {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);  // send_now() must not wait for a client
    read_head();
  }

  void refuse_for_overload() override {
    answering_ = true;
    HttpResponse response =
        server_->api->protocol_error(503, "The server has too many connections.");
    response.headers.emplace_back("Retry-After", "1");
    respond(std::move(response));
  }

  void close_when_idle() override {
    close_after_answer_ = true;
    if (!answering_ && unsent_.empty()) close_now();
  }

  void close_now() override {
    if (closed_) return;
    closed_ = true;
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
    head += connection_field();
    head += "\r\n";
    unsent_ += head;
    if (!bodyless && !head_only_) unsent_ += response.body;
    finish_answer();
  }

  void begin_stream(std::string_view request_id) override {
    if (closed_ || !answering_) return;
    chunked_ = request_http_1_1_;  // HTTP/1.0 knows the end of a stream by the connection's
    // A stream is the last on its connection even where its end is marked. Clients over node-fetch
    // 2, OpenAI's for JavaScript among them, take a stream for broken off ("Premature close") when
    // Node.js puts a guard on the connection that it keeps, as Debian 12's 18.20.4 and others do:
    // https://github.com/nodejs/node/issues/63989
    close_after_answer_ = true;
    unsent_ +=
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: "
        "no-cache\r\nX-Accel-Buffering: no\r\n";
    if (!request_id.empty()) unsent_ += fmt::format("X-Request-Id: {}\r\n", request_id);
    if (chunked_) unsent_ += "Transfer-Encoding: chunked\r\n";
    unsent_ += connection_field();
    unsent_ += "\r\n";
    streaming_ = true;
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
    if (unsent_.size() - in_flight_ > kMaxUnsentStreamBytes) {
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
  std::string connection_field() const {
    if (close_after_answer_ || !keep_alive_) return "Connection: close\r\n";
    return request_http_1_1_ ? "" : "Connection: keep-alive\r\n";
  }

  // ---- reading ----

  void read_head() {
    if (closed_) return;
    if (close_after_answer_ || server_->closing) return close_now();
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    parser_->body_limit(server_->max_body_bytes);
    keep_alive_ = false;
    request_http_1_1_ = true;
    if (buffer_.size() > 0) return continue_head();
    // Idle until the first byte; then the whole head has its own, shorter time.
    arm(kIdleTimeout);
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      if (self->closed_) return;
      if (error) return self->close_now();
      self->continue_head();
    });
  }

  void continue_head() {
    arm(kHeadTimeout);
    http::async_read_header(socket_, buffer_, *parser_,
                            [self = shared_from_this()](error_code error, std::size_t) {
                              if (self->closed_) return;
                              self->read_timer_.cancel();
                              error ? self->read_failed(error) : self->head_read();
                            });
  }

  void read_failed(error_code error) {
    answering_ = true;
    head_only_ = false;
    if (error == http::error::body_limit) {
      return respond(server_->api->protocol_error(
          413, fmt::format("The body is larger than {} bytes (server.max_body_mb).",
                           server_->max_body_bytes)));
    }
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return respond(server_->api->protocol_error(
          431, fmt::format("The request's head is larger than {} bytes.", kMaxHeadBytes)));
    }
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message) {
      return respond(server_->api->protocol_error(
          400, "This is not a valid HTTP/1.1 request: " + error.message() + "."));
    }
    answering_ = false;
    close_now();
  }

  void head_read() {
    const auto& message = parser_->get();
    request_http_1_1_ = message.version() >= 11;
    keep_alive_ = message.keep_alive();
    head_only_ = message.method() == http::verb::head;
    answering_ = true;
    if (message.version() < 10)
      return respond(
          server_->api->protocol_error(400, "Only HTTP/1.0 and HTTP/1.1 are spoken here."));

    HttpRequest request;
    request.method = to_string(message.method_string());
    request.http_1_1 = request_http_1_1_;
    request.has_body = parser_->chunked() || parser_->content_length().value_or(0) > 0;
    request.hosts = static_cast<int>(message.count(http::field::host));
    request.host = to_string(message[http::field::host]);
    request.origin = to_string(message[http::field::origin]);
    request.authorization = to_string(message[http::field::authorization]);
    request.last_event_id = to_string(message["Last-Event-ID"]);
    std::optional<std::string> path = decode_path(to_string(message.target()));
    if (!path)
      return respond(
          server_->api->protocol_error(400, "The request's target has a broken percent escape."));
    request.path = *std::move(path);

    if (std::optional<HttpResponse> answer = server_->api->answer_head(request)) {
      if (request.has_body) answer->close = true;  // its body stays unread
      return respond(*std::move(answer));
    }
    if (auto encoding = message[http::field::content_encoding];
        !encoding.empty() && !beast::iequals(encoding, "identity")) {
      return respond(server_->api->protocol_error(
          415, "Bodies are taken as they are, not compressed: send none with a Content-Encoding."));
    }
    request_ = std::move(request);
    auto expect = message[http::field::expect];
    if (!expect.empty() && request_http_1_1_) {
      if (!beast::iequals(expect, "100-continue"))
        return respond(server_->api->protocol_error(417, "Only 100-continue can be expected."));
      unsent_ += "HTTP/1.1 100 Continue\r\n\r\n";
      pump();
    }
    arm(kBodyTimeout);
    http::async_read(socket_, buffer_, *parser_,
                     [self = shared_from_this()](error_code error, std::size_t) {
                       if (self->closed_) return;
                       self->read_timer_.cancel();
                       error ? self->read_failed(error) : self->body_read();
                     });
  }

  void body_read() {
    request_.body = std::move(parser_->get().body());
    watch_for_end();
    server_->api->handle(std::move(request_), shared_from_this());
  }

  // While an answer is being made: an end of file or a reset means that nobody waits for it. What a
  // client sends ahead is kept, within bounds, so that the end behind it is seen too.
  void watch_for_end() {
    if (closed_ || buffer_.size() >= kMaxReadAheadBytes) return;
    watching_ = true;
    socket_.async_read_some(buffer_.prepare(4096),
                            [self = shared_from_this()](error_code error, std::size_t bytes) {
                              self->watching_ = false;
                              if (self->closed_) return;
                              self->buffer_.commit(bytes);
                              if (error && error != asio::error::operation_aborted) {
                                self->client_ended_ = true;
                                // While the last bytes of an answer are on their way, their handler
                                // ends the connection.
                                if (self->answering_ || self->next_after_watch_) self->close_now();
                                return;
                              }
                              if (self->next_after_watch_) {
                                self->next_after_watch_ = false;
                                return self->read_head();
                              }
                              if (self->answering_) self->watch_for_end();
                            });
  }

  void arm(seconds timeout) {
    read_timer_.start(timeout, [this] { close_now(); });
  }

  // ---- writing ----

  void finish_answer() {
    answering_ = false;
    streaming_ = false;
    on_lost = nullptr;
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
                        if (self->closed_) return;
                        self->write_timer_.cancel();
                        if (error) return self->close_now();
                        self->unsent_.erase(0, std::exchange(self->in_flight_, 0));
                        self->pump();
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
    arm(kLingerTimeout);
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
                              if (self->closed_) return;
                              self->discarded_ += bytes;
                              if (error || self->discarded_ > kMaxDiscardedBytes)
                                return self->close_now();
                              self->discard();
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
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest request_;

  std::string unsent_;  // the first in_flight_ bytes of it are being written, from flight_
  std::string flight_;
  std::size_t in_flight_ = 0;
  std::size_t discarded_ = 0;

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
