// One HTTP request and the way to answer it, independent of sockets. The server passes it to the endpoints.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "orchestrator/http/trace_context.hpp"

namespace bulkhead::orchestrator {

struct HttpRequest {
  std::string method;
  std::string path;  // percent-decoded, without the query
  bool has_body = false;
  bool http_1_1 = true;
  std::string host, origin, authorization;  // empty: absent; see also `hosts`
  std::string last_event_id, if_none_match;
  // Access-Control-Request-Method and -Headers of a browser that asks what a page may send.
  std::string cors_method, cors_headers;
  TraceContext trace;  // from the field `traceparent`
  std::chrono::steady_clock::time_point arrived =
      std::chrono::steady_clock::now();  // when its head arrived
  int hosts = 0;                         // how many Host fields were sent
  std::string body;                      // empty while only the head has been read
};

// Names and values of header fields, in the order in which they are sent.
using HeaderFields = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HeaderFields headers;
  bool close = false;  // end the connection afterwards
};

inline constexpr std::string_view kEventStream = "text/event-stream; charset=utf-8";

// The client's side of an answer, to which the answer is sent. Calls do nothing once the client is gone. One thread.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Sends the whole answer, once. A stream of events uses begin_stream, write..., end_stream instead.
  virtual void respond(HttpResponse response) = 0;
  // `answers` is the number of answers that the stream carries at a time. The client may leave as many bytes unread for
  // each of them as for the answer of a stream with one, up to a share of server.max_memory_mb.
  virtual void begin_stream(std::string_view content_type = kEventStream,
                            std::size_t answers = 1) = 0;
  virtual void write(std::string_view events) = 0;
  // `close`: the connection ends after the stream, so that the client sees that the stream is incomplete.
  virtual void end_stream(bool close) = 0;
  // Returns how many bytes the client's socket has not taken yet.
  virtual std::size_t unsent_bytes() const = 0;
  // Counts more memory for this request, until its answer has been sent. Returns false if the server's budget has no
  // room.
  virtual bool hold_more(std::size_t bytes) = 0;
  // Returns how much memory counts for this request, and how much could if the server had no other request.
  virtual std::size_t held_bytes() const = 0;
  virtual std::size_t most_to_hold() const = 0;

  // Returns the request's id, which the answer's head (X-Request-Id) and the log line have. The
  // exchange makes one when it is first asked. A client's own X-Request-Id is ignored, so that no
  // two requests have the same id.
  const std::string& request_id();
  // Makes `id` the request's id. A generation gives its own id, before the answer's head is sent.
  void take_request_id(std::string_view id) { request_id_ = id; }

  // The name of a second field with the id in the answer's head; null: there is none.
  const char* second_id_field = nullptr;

  // For the request's log line (request_line.hpp). `method` is empty until the head has been read and has a route.
  std::string method;
  std::string key_name;  // the name of the client's key; empty: the client has none
  TraceContext trace;
  std::chrono::steady_clock::time_point arrived;

  // Fields for every head that this exchange sends: what browsers need to know (CORS).
  HeaderFields extra_headers;

  enum class Lost { kHungUp, kTooSlow };
  // Called at most once, from the event loop, when the answer can't reach the client any more. kTooSlow: more unsent
  // bytes had gathered than the connection's limit. Not called after the answer's end.
  std::function<void(Lost)> on_lost;

 protected:
  // Forgets what belongs to one request and would be told with the next one.
  void forget_request() {
    request_id_.clear();
    second_id_field = nullptr;
    method.clear();
    key_name.clear();
    trace = {};
    extra_headers.clear();
  }

 private:
  std::string request_id_;  // empty until somebody asks for it
};

}  // namespace bulkhead::orchestrator
