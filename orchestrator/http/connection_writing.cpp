// How a connection writes whole answers and streams within bounds of time and memory, and how it ends.
#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include "config/base/log.hpp"
#include "orchestrator/http/client_connection.hpp"
#include "orchestrator/http/response_head.hpp"

namespace bulkhead::orchestrator {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::seconds;

namespace {

constexpr std::size_t kMaxUnsentBytesOfAnswer = 1024 * 1024;  // in a stream
constexpr std::size_t kWriteSliceBytes = 64 * 1024;
constexpr std::size_t kMaxDiscardedBytes = 64 * 1024 * 1024;
constexpr seconds kWriteTimeout{30};
constexpr seconds kLingerTimeout{2};

}  // namespace

void ClientConnection::respond(HttpResponse response) {
  if (closed_ || !answering_) return;
  if (response.close) close_after_answer_ = true;
  const std::string head = response_head(response, extra_headers, last_fields());
  const bool with_body = may_have_body(response.status) && !head_only_;
  // If there is no memory, nothing of the response is sent, and a smaller one can take its place.
  unsent_.reserve_for(head.size() + (with_body ? response.body.size() : 0));
  unsent_.append(head);
  if (with_body) unsent_.append(response.body);
  finish_answer();
}

void ClientConnection::begin_stream(std::string_view content_type, std::size_t answers) {
  if (closed_ || !answering_) return;
  // One client must leave room for others.
  const std::size_t share = server_->memory.most_for(for_operators_) / 16;
  most_unsent_ = std::clamp(kMaxUnsentBytesOfAnswer * answers, kMaxUnsentBytesOfAnswer,
                            std::max(kMaxUnsentBytesOfAnswer, share));
  chunked_ = request_http_1_1_;  // an HTTP/1.0 stream ends with its connection
  // A stream is the last answer on its connection, even if the stream's end is marked. Clients that
  // use node-fetch 2, such as OpenAI's for JavaScript, report such a stream as broken ("Premature
  // close") when Node.js puts a guard on a kept connection, as Debian 12's 18.20.4 and others do:
  // https://github.com/nodejs/node/issues/63989
  close_after_answer_ = true;
  unsent_.append(stream_head(content_type, extra_headers, chunked_, last_fields()));
  streaming_ = true;
  largest_write_ = 0;
  pump();
}

void ClientConnection::write(std::string_view events) {
  if (closed_ || !streaming_ || too_slow_ || events.empty()) return;
  if (chunked_) {
    std::array<char, 20> size{};
    const char* const end = fmt::format_to(size.data(), "{:x}\r\n", events.size());
    unsent_.reserve_for(size.size() + events.size() + 2);  // no memory: the whole chunk is missing
    unsent_.append({size.data(), end});
    unsent_.append(events);
    unsent_.append("\r\n");
  } else {
    unsent_.append(events);
  }
  const bool fits = unsent_.size() < kWriteSliceBytes || hold(unsent_.size() + kept_body_);
  // A client is not slow because one write is large.
  largest_write_ = std::max(largest_write_, events.size());
  if (!fits || unsent_.size() - in_flight_ > most_unsent_ + largest_write_) {
    too_slow_ = true;
    // give_up() gets a turn of its own: the caller is in the middle of its work.
    asio::post(socket_.get_executor(), [self = shared_from_this()] { self->give_up(); });
    return;
  }
  if (unsent_.size() >= kWriteSliceBytes) return pump();
  // All writes of one turn of the event loop go out together when the turn is over.
  if (std::exchange(to_send_, true)) return;
  server_->send_after_this(shared_from_this());
}

void ClientConnection::send_now() {
  to_send_ = false;
  if (closed_ || too_slow_ || in_flight_ > 0 || unsent_.empty()) return;
  error_code error;
  const std::string_view bytes = unsent_.front();
  const std::size_t sent = socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
  if (error && error != asio::error::would_block) return close_now();
  unsent_.drop(sent);
  if (!unsent_.empty()) pump();
}

void ClientConnection::end_stream(bool close) {
  if (closed_ || !streaming_ || too_slow_) return;
  if (close) close_after_answer_ = true;
  if (chunked_) unsent_.append("0\r\n\r\n");
  finish_answer();
}

std::string ClientConnection::last_fields() {
  std::string fields = fmt::format("X-Request-Id: {}\r\n", request_id());
  if (second_id_field != nullptr)
    fields += fmt::format("{}: {}\r\n", second_id_field, request_id());
  return fields.append(connection_field());
}

std::string_view ClientConnection::connection_field() const {
  if (close_after_answer_ || !keep_alive_) return "Connection: close\r\n";
  return request_http_1_1_ ? "" : "Connection: keep-alive\r\n";
}

void ClientConnection::finish_answer() {
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

void ClientConnection::pump() {
  if (closed_ || in_flight_ > 0) return;
  if (unsent_.empty()) {
    if (!answering_) answer_out();
    return;
  }
  // The bytes that are being written stay in flight_; unsent_ gathers new ones.
  flight_.assign(unsent_.front(kWriteSliceBytes));
  in_flight_ = flight_.size();
  write_timer_.start(kWriteTimeout, [this] { give_up(); });
  asio::async_write(socket_, asio::buffer(flight_),
                    [self = shared_from_this()](error_code error, std::size_t) {
                      self->guarded("writing an answer", [&] {
                        if (self->closed_) return;
                        self->write_timer_.cancel();
                        if (error) return self->close_now();
                        self->unsent_.drop(std::exchange(self->in_flight_, 0));
                        if (self->held_ > self->unsent_.size() + self->kept_body_)
                          self->hold(self->unsent_.size() + self->kept_body_);
                        self->pump();
                      });
                    });
}

void ClientConnection::answer_out() {
  if (close_after_answer_ || !keep_alive_ || client_ended_ || server_->closing) return linger();
  if (reading_) {
    next_after_watch_ = true;
    error_code ignored;
    socket_.cancel(ignored);
    return;
  }
  read_head();
}

void ClientConnection::linger() {
  if (closed_ || lingering_) return;
  lingering_ = true;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  if (client_ended_) return close_now();
  read_timer_.start(kLingerTimeout, [this] { close_now(); });
  if (reading_) socket_.cancel(ignored);  // nothing is being written now
  drop_read();
}

void ClientConnection::discard() {
  buffer_.clear();
  read_some("the rest of a request", kWriteSliceBytes, [this](error_code error, std::size_t bytes) {
    discarded_ += bytes;
    if (error || discarded_ > kMaxDiscardedBytes) return close_now();
    discard();
  });
}

void ClientConnection::give_up() {
  if (closed_) return;
  auto lost = std::exchange(on_lost, nullptr);
  if (answering_ && lost) lost(Lost::kTooSlow);
  error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  close_now();
}

}  // namespace bulkhead::orchestrator
