// The connection with one client. connection.cpp has the functions that read requests; connection_writing.cpp has
// those that write answers and end the connection. Other sources use connection.hpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include "orchestrator/http/connection.hpp"
#include "orchestrator/http/errors.hpp"
#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/incoming_request.hpp"
#include "orchestrator/http/unsent_bytes.hpp"

namespace bulkhead::orchestrator {

// A connection that reads one request at a time. While an answer is being made, it only watches whether the client is
// gone. All output goes through `unsent_`.
class ClientConnection final : public Connection,
                               public Exchange,
                               public std::enable_shared_from_this<ClientConnection> {
 public:
  ClientConnection(std::shared_ptr<ConnectionOwner> server, boost::asio::ip::tcp::socket socket)
      : server_(std::move(server)),
        socket_(std::move(socket)),
        read_timer_(server_->loop),
        write_timer_(server_->loop) {}
  ~ClientConnection() override { hold(0); }

  // ---- Connection ----

  void begin(bool operators_only) override;
  void refuse_for_overload() override;
  void refuse_for_memory() override;
  void close_when_idle() override;
  void close_now() override;
  std::optional<std::chrono::steady_clock::time_point> idle_since() const override {
    if (!idle_ || answering_ || closed_) return std::nullopt;
    return idle_since_;
  }
  std::size_t unfinished_body_bytes() const override {
    return reading_body_ && !closed_ ? request_.body.size() : 0;
  }
  // Sends the stream's new bytes in one system call. They nearly always fit the socket's buffer; the connection then
  // copies nothing, starts no timer and waits for no completion.
  void send_now() override;

  // ---- Exchange ----

  void respond(HttpResponse response) override;
  void begin_stream(std::string_view content_type, std::size_t answers) override;
  void write(std::string_view events) override;
  void end_stream(bool close) override;
  std::size_t unsent_bytes() const override { return unsent_.size(); }
  bool hold_more(std::size_t bytes) override {
    if (closed_) return true;
    if (!hold(held_ + bytes)) return false;
    kept_body_ += bytes;
    return true;
  }
  std::size_t held_bytes() const override { return kept_body_; }
  std::size_t most_to_hold() const override { return server_->memory.most_for(for_operators_); }

 private:
  // Runs a handler; every handler goes through here. If it throws an exception (such as for lack of memory), only
  // this connection ends.
  template <typename Handle>
  void guarded(const char* doing, Handle handle) {
    server_->loop.call(doing, [&] {
      try {
        handle();
      } catch (const std::exception& error) {
        ended_by(error);
      }
    });
  }
  void ended_by(const std::exception& error);

  // Sets this connection's share of the server's memory budget. Returns false if the budget has no room.
  bool hold(std::size_t bytes) { return server_->memory.change(held_, bytes, for_operators_); }

  // ---- reading ----

  // Reads up to `most` bytes after those in buffer_, then calls handle(error, bytes read), guarded. The handler
  // commits the bytes. The connection stays alive until then. Only one read may be pending, and until its handler
  // has run, buffer_ must keep its memory, because the read writes there. If close_now() or drop_read() is called
  // before the read ends, the handler is not called.
  template <typename Handle>
  void read_some(const char* doing, std::size_t most, Handle handle) {
    const auto room = buffer_.prepare(most);
    reading_ = true;
    socket_.async_read_some(room, [self = shared_from_this(), doing, handle](
                                      boost::system::error_code error, std::size_t bytes) {
      self->reading_ = false;
      self->guarded(doing, [&] {
        if (self->closed_) return;
        if (std::exchange(self->read_is_dropped_, false)) return self->read_dropped();
        handle(error, bytes);
      });
    });
  }
  // Drops the bytes that the connection has read, and those that a pending read may still bring.
  void drop_read();
  // Called when no read is pending after drop_read().
  void read_dropped();
  std::string_view buffered() const {
    return {static_cast<const char*>(buffer_.data().data()), buffer_.size()};
  }
  void read_head();
  void continue_head();
  void read_more_of_head();
  void look_for_head();
  void head_read(const RequestHead& head);
  void watch_body_speed();
  // Takes the buffered bytes that belong to this body.
  void take_body();
  // Reserves memory for the body's bytes, and the same amount again for what its string may have reserved. Returns
  // false if there is no room; this connection has then refused the request.
  bool hold_body(std::size_t bytes);
  void body_read();
  // Stops reading the request: only an answer can follow, the connection's last one.
  void stop_reading();
  // Watches whether the client is gone while an answer is being made: an end of file or a reset means that nobody
  // waits for the answer. The connection keeps a bounded amount of what a client sends ahead, so that it also sees an
  // end after those bytes.
  void watch_for_end();

  // Refuses the request in the form of the protocol to which its path belongs.
  void refuse(const ErrorKind& kind, const std::string& message);
  // Refuses bytes that can be read in two ways. The connection reads nothing after them.
  void bad_request(const std::string& rule);
  void too_slow_a_sender();
  void body_too_large();

  // ---- writing ----

  std::string_view connection_field() const;
  // Returns the last fields of each head: the request's id, and whether the connection ends.
  std::string last_fields();
  void finish_answer();
  void pump();
  void answer_out();
  // Shuts down the server's side and reads the client's to its end, so that the kernel does not discard the answer
  // with a reset.
  void linger();
  void discard();
  // Ends the connection with a client that does not read, and drops the unsent bytes.
  void give_up();

  std::shared_ptr<ConnectionOwner> server_;
  boost::asio::ip::tcp::socket socket_;
  Timer read_timer_, write_timer_;
  boost::beast::flat_buffer buffer_;
  HttpRequest request_;
  std::string path_;  // path of the present request; empty while it is unknown
  IncomingBody body_;
  std::chrono::steady_clock::time_point idle_since_;
  std::size_t held_ = 0;       // this connection's share of the server's memory budget
  std::size_t kept_body_ = 0;  // its part for the body and hold_more(), until the answer is sent

  UnsentBytes unsent_;  // the bytes to send; flight_ holds a copy of the first in_flight_ of them
  std::string flight_;
  std::size_t in_flight_ = 0;
  std::size_t largest_write_ = 0;  // the largest write of this stream
  std::size_t most_unsent_ = 0;    // bytes of this stream that the client may leave unread
  std::size_t discarded_ = 0;

  bool operators_only_ = false;
  bool for_operators_ = false;  // whether the present request is an operator's
  bool idle_ = false;           // the connection waits for a request's whole head
  bool reading_body_ = false;
  bool request_http_1_1_ = true;
  bool keep_alive_ = false;
  bool head_only_ = false;
  bool chunked_ = false;
  bool answering_ = false;  // a request has been read, and its answer is not complete
  bool streaming_ = false;
  bool too_slow_ = false;
  bool to_send_ = false;  // send_now() will be called
  bool reading_ = false;  // a read is pending; while an answer is made, that is watch_for_end()'s
  bool read_is_dropped_ = false;  // drop_read() was called while it was pending
  bool next_after_watch_ = false;
  bool client_ended_ = false;
  bool close_after_answer_ = false;
  bool lingering_ = false;
  bool closed_ = false;
};

}  // namespace bulkhead::orchestrator
