// What all answers in progress have in common, whether they are streamed, resumable or looked up:
// the deadline, the figures for the metrics, the line in the log, and the end.
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
#include "orchestrator/metrics/metrics.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

class Answer;

// What answers need of the daemon.
struct AnswerServices {
  EventLoop& loop;
  Router& router;
  Metrics& metrics;
  std::unordered_set<std::shared_ptr<Answer>> held = {};  // answers that nobody else holds
  std::chrono::seconds keep_alive{0};                     // server.stream_keep_alive_s
};

class Answer : public RequestObserver, public std::enable_shared_from_this<Answer> {
 public:
  using Clock = std::chrono::steady_clock;

  void on_failed(RequestId, const Failure& failure) override { fail(to_api_error(failure)); }

  // The facts that the log and the lists tell about the answer; all empty if the answer generates
  // no text.
  struct Facts {
    std::string_view id, model;
    bool stream = false;
    std::size_t choices = 1;
    Usage usage = {};
    bool recovered = false;  // an earlier daemon began it
  };
  virtual Facts facts() const { return {}; }
  // Returns the router's requests that this answer waits for.
  virtual std::vector<RequestId> unfinished() const = 0;
  const std::string& endpoint() const { return endpoint_; }
  Clock::time_point began() const { return began_; }
  Clock::time_point first_token() const { return first_token_; }  // 0 until the first token comes
  std::string_view key_name() const;  // name of the client's key; empty if the client has none
  std::string_view turn_of() const override { return key_name(); }
  std::string request_name() const override { return std::string(facts().id); }

 protected:
  // `endpoint`: the route's label in the metrics and the log.
  Answer(AnswerServices& services, std::string endpoint)
      : services_(services),
        endpoint_(std::move(endpoint)),
        deadline_(services.loop),
        silence_(services.loop) {}

  // Tells the client, cancels what is under way, and ends.
  virtual void fail(const ApiError& error) = 0;
  // Tells the client what of its request is not heeded, in a field of the head: X-Bulkhead-Warning.
  static void add_warnings(Exchange& exchange, std::span<const std::string> warnings);
  // The client is gone.
  virtual void lost(Exchange::Lost how) = 0;

  // Keeps this object until release().
  void hold() { services_.held.insert(shared_from_this()); }
  void release() { services_.held.erase(shared_from_this()); }
  // Arranges that lost() is called, at most once, when the client is gone. Takes the exchange's
  // ticket, if it has one.
  void watch(Exchange& exchange);
  // Takes the ticket of an answer that has no exchange because an earlier daemon began it.
  void take(std::shared_ptr<KeyTicket> ticket) { ticket_ = std::move(ticket); }
  // fail() with kTimeout after `timeout`, unless it has ended.
  void start_deadline(std::chrono::seconds timeout);

  // Calls `send` whenever AnswerServices::keep_alive passes without stream_spoke(), until the
  // answer ends. Streams need this: a worker may take long to read a prompt, and proxies and
  // clients give up silent streams.
  void watch_silence(std::function<void()> send);
  void stream_spoke() { spoke_ = true; }

  // Counts tokens against the limits of the client's key, beyond those that tokens_came() and end()
  // count.
  void charge(std::uint64_t tokens);
  // Counts tokens that came. `last`: the time at which the choice's last tokens came.
  void tokens_came(Clock::time_point& last, std::size_t count);
  // Counts a client that is gone. Returns the words for the log.
  const char* count_lost(Exchange::Lost how);

  // Ends the answer; called once. `how`: the finish reason, the error's code, or why the client was
  // lost.
  void end(int status, std::string_view how, const Facts& facts);
  // Ends an answer that generates no text: the log has no line about it.
  void end(int status);

  AnswerServices& services_;
  const std::string endpoint_;

 private:
  std::shared_ptr<KeyTicket> ticket_;  // the ticket of the client's key, until the answer ends
  Timer deadline_, silence_;
  bool spoke_ = false;  // whether the stream spoke since silence_ was started
  const Clock::time_point began_ = Clock::now();
  Clock::time_point first_token_;
};

// An answer that is sent whole, in one piece.
class WholeAnswer : public Answer {
 protected:
  WholeAnswer(AnswerServices& services, std::string endpoint, std::shared_ptr<Exchange> exchange)
      : Answer(services, std::move(endpoint)), exchange_(std::move(exchange)) {}

  void lost(Exchange::Lost how) override;
  // Sends the response and ends the answer.
  void finish(HttpResponse response);
  // Cancels the requests that have no answer yet.
  virtual void cancel() = 0;

  std::shared_ptr<Exchange> exchange_;
};

}  // namespace bulkhead::orchestrator
