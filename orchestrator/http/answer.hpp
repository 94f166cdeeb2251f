// What all answers in progress have in common, whether they are streamed, resumable or looked up: the deadline, the
// figures for the metrics, the log line, and the end.
//
// An answer ends once, in one of three ways; whatever comes after the end changes nothing:
//
//   under way --- the client has all of it: end_with(200, ...) ---> over
//             --- an error or the deadline: fail() -------------->
//             --- the client is gone: lost() -------------------->
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "orchestrator/event_loop.hpp"
#include "orchestrator/http/errors.hpp"
#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/http/request_line.hpp"
#include "orchestrator/metrics/metrics.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

class Answer;
class KeyTicket;  // key_limits.hpp
class SpanExport;

std::size_t bytes_of(const Prompt& prompt);
// Returns the bytes of what every answer of a request has a copy of, without the prompt.
std::size_t bytes_of_parameters(const ipc::Submit& parameters);

// The parts of the daemon that answers need.
struct AnswerServices {
  EventLoop& loop;
  Router& router;
  Metrics& metrics;
  std::unordered_set<std::shared_ptr<Answer>> held = {};  // answers that keep themselves alive
  std::chrono::seconds keep_alive{0};                     // server.stream_keep_alive_s
  SpanExport* spans = nullptr;                            // null without server.otlp_endpoint
};

class Answer : public RequestObserver, public std::enable_shared_from_this<Answer> {
 public:
  using Clock = std::chrono::steady_clock;

  void on_failed(RequestId, const Failure& failure) override { fail(to_api_error(failure)); }

  // The facts about the answer for the log and the lists; all are empty if the answer generates no text.
  struct Facts {
    std::string_view id, model;
    bool stream = false;
    std::size_t choices = 1;
    Usage usage = {};
    bool recovered = false;  // an earlier daemon began it
  };
  virtual Facts facts() const { return {}; }
  // Returns the request's id, which the answer's head and the log have.
  std::string_view id() const { return generates() ? facts().id : std::string_view(request_id_); }
  bool over() const { return over_; }
  // Takes the ticket of the client's key, which may be null. Call it before the answer begins.
  void take_ticket(std::shared_ptr<KeyTicket> ticket) { ticket_ = std::move(ticket); }
  // Returns the router's unfinished requests of this answer.
  virtual std::vector<RequestId> unfinished() const = 0;
  const std::string& endpoint() const { return endpoint_; }
  // When the request arrived; if an earlier daemon began the answer, when this daemon went on with it.
  Clock::time_point began() const { return began_; }
  Clock::time_point first_token() const {
    return first_token_;
  }                                   // 0 until the first token has come
  std::string_view key_name() const;  // name of the client's key; empty if the client has none
  std::string_view turn_of() const override { return key_name(); }
  std::string request_name() const override { return std::string(id()); }

 protected:
  // `endpoint` is the route's label in the metrics and the log.
  Answer(AnswerServices& services, std::string endpoint)
      : services_(services),
        endpoint_(std::move(endpoint)),
        deadline_(services.loop),
        silence_(services.loop) {}

  // Cancels the router's unfinished requests of this answer.
  virtual void cancel() = 0;
  // Sends the client the error with which the answer fails.
  virtual void tell(const ApiError& error) = 0;
  // Tells the client that an exception interrupted the message about the end.
  virtual void tell_exception() {}
  // Called when the answer has ended. The log and the metrics have it by then.
  virtual void ended() = 0;
  // The client is gone. That ends the answer, unless others can read it.
  virtual void lost(Exchange::Lost how);

  // Cancels what is in progress, sends the error to the client, and ends.
  void fail(const ApiError& error);
  // Ends the answer, unless it has ended: cancels what is in progress, calls `tell_client`, counts and logs the
  // answer. `how` is the finish reason, the error's code, or why the client was lost. Throws nothing.
  void end_with(int status, std::string_view how, const std::function<void()>& tell_client);
  // Records that an earlier daemon ended the answer.
  void was_over() { over_ = true; }
  // Adds a header (X-Bulkhead-Warning) that names the ignored parts of the request.
  static void add_warnings(Exchange& exchange, std::span<const std::string> warnings);

  // Keeps this object alive until release().
  void hold() { services_.held.insert(shared_from_this()); }
  void release() { services_.held.erase(shared_from_this()); }
  // Arranges that lost() is called, at most once, when the client is gone. The first exchange also says when the
  // request arrived.
  void watch(Exchange& exchange);
  // Continues an answer that an earlier daemon began: sets the request's method and trace for the log, which are
  // otherwise those of the first exchange that is watched. `has_tokens`: the earlier daemon has counted the time to the
  // first token.
  void take_over(std::string_view method, TraceContext trace, bool has_tokens) {
    method_ = method;
    trace_ = std::move(trace);
    knows_request_ = true;
    counts_first_token_ = !has_tokens;
  }
  const TraceContext& trace() const { return trace_; }
  // Calls fail() with kTimeout when `timeout` has passed since began(), unless the answer has ended.
  void start_deadline(std::chrono::seconds timeout);

  // Calls `send` whenever AnswerServices::keep_alive passes without stream_spoke(), until the answer ends. Streams
  // need this, because a worker may take long to read a prompt, and proxies and clients give up silent streams.
  void watch_silence(std::function<void()> send);
  void stream_spoke() { spoke_ = true; }

  // Counts tokens against the limits of the client's key, in addition to those that tokens_came() and the end count.
  void charge(std::uint64_t tokens);
  // Counts tokens that came. `last` is when the choice's last tokens came.
  void tokens_came(Clock::time_point& last, std::size_t count);
  // Records how long a request waited for its worker to begin: the time to its first token, minus the time that the
  // worker took to read the prompt.
  void queue_ended(Clock::time_point first_token, const ipc::Finished& finished);
  // Counts a client that is gone. Returns the words for the log.
  const char* count_lost(Exchange::Lost how);

  AnswerServices& services_;
  const std::string endpoint_;

 private:
  bool generates() const { return !facts().id.empty(); }
  void count_end(int status, std::string_view how);
  void export_span(int status, std::string_view how, const Facts& facts) const;

  // Returns the parts of the log line that all answers have.
  RequestLine line_of(int status) const;

  bool over_ = false;
  std::string request_id_;  // the first exchange's; facts() have the same one, or none
  std::string method_;
  TraceContext trace_;
  bool knows_request_ = false;         // request_id_, method_, trace_ and began_ are set
  bool counts_first_token_ = true;
  std::shared_ptr<KeyTicket> ticket_;  // the ticket of the client's key, until the answer ends
  Timer deadline_, silence_;
  bool spoke_ = false;  // whether the stream has sent anything since silence_ was started
  const Clock::time_point admitted_ = Clock::now();
  Clock::time_point began_ = admitted_;
  Clock::time_point first_token_;
  Clock::time_point reading_began_;  // when a worker first looked at a prompt of it; 0: unknown
};

// An answer that lives as long as its client's connection, and keeps itself alive until it ends.
class ConnectedAnswer : public Answer {
 protected:
  // `refuse` renders an error that occurs before a stream's head is sent.
  ConnectedAnswer(AnswerServices& services, std::string endpoint, RefusalForm refuse,
                  std::shared_ptr<Exchange> exchange)
      : Answer(services, std::move(endpoint)), exchange_(std::move(exchange)), refuse_(refuse) {}

  // Returns the body of an answer that is not streamed.
  virtual std::string whole() = 0;
  // Returns the event that ends a stream that fails.
  virtual std::string failure(const ApiError& error) { return sse_error(error); }

  // Begins: keeps this object alive, watches the client and starts the deadline.
  void begin(std::chrono::seconds timeout);
  // Ends an answer that succeeded: sends the whole answer, or ends the stream with `last_events`.
  void finish(std::string_view how, std::string_view last_events = "");
  // Starts the answers' requests, which were admitted to `model`: calls `start_one` with each index
  // below `count`, until the answer ends. `start_one` copies a prompt, starts one request and
  // returns the prompt's bytes. Large prompts take several turns of the loop, so that others are
  // not held up. The requests have their places in the queue meanwhile.
  using StartOne = std::function<std::size_t(std::size_t index)>;
  void start_each(std::size_t model, std::size_t count, StartOne start_one);
  // Counts the memory for copies of the prompts that the request's body does not cover. If there is no room now, or
  // never will be, the answer fails, and this returns false.
  bool hold_prompts(const GenerationRequest& request);
  // Begins the stream of a request with `count` answers, `n` for each prompt, if it may begin now. Called for
  // each answer that a worker accepts. The stream begins when each prompt has an answer that was accepted: the other
  // answers to the prompt may wait long for their turn, but the request gives no reason to refuse them. If prompts
  // wait, too, it begins after AnswerServices::keep_alive all the same, so that neither client nor proxy gives it up.
  // `begin` sends the head; `send` is as for watch_silence().
  struct StreamStart {
    std::size_t count, n;
    std::function<bool(std::size_t index)> accepted;
    std::function<void()> begin, send;
  };
  void begin_stream_in_time(const StreamStart& start);
  void tell(const ApiError& error) override;
  void tell_exception() override;
  void ended() override;

  std::shared_ptr<Exchange> exchange_;
  bool streaming_ = false;  // the stream's head has been sent

 private:
  void start_from(std::size_t index, std::size_t count, const StartOne& start_one);

  const RefusalForm refuse_;
  bool watched_ = false;  // the stream begins after a time, whatever has been accepted by then
};

}  // namespace bulkhead::orchestrator
