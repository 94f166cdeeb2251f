// One completion or chat answer in progress: its choices (each a request of the router's), its
// deadline, its client. Collects or streams what the router reports, and cancels everything when
// the client is gone or the time is up.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/metrics/metrics.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

class Generation : private RequestObserver, public std::enable_shared_from_this<Generation> {
 public:
  // `finished` is called once, at the very end; until then somebody must hold the object.
  Generation(EventLoop& loop, Router& router, Metrics& metrics, std::shared_ptr<Exchange> exchange,
             GenerationRequest request, std::function<void()> finished);

  // Admitted to `model` already.
  void start(std::size_t model, std::chrono::seconds timeout);

 private:
  using Clock = std::chrono::steady_clock;

  struct Choice {
    std::uint32_t index = 0;
    RequestId request;  // 0 once it is over
    bool accepted = false;
    bool done = false;
    bool counts_prompt = false;  // first answer to its prompt
    bool told_prompt = false;    // its prompt's ids are out
    std::vector<ipc::TokenId> prompt_ids;
    std::size_t prompt_tokens = 0;
    std::size_t cached_tokens = 0;  // of those
    std::vector<ipc::TokenId> tokens;
    std::string text;
    LogprobsJson logprobs;
    std::string logprobs_text;
    std::string finish_reason;
    Clock::time_point last_tokens;
  };

  void on_accepted(RequestId request, std::span<const ipc::TokenId> prompt_tokens) override;
  void on_tokens(RequestId request, std::span<const ipc::TokenId> tokens, std::string_view text,
                 std::span<const ipc::TokenLogprob> logprobs) override;
  void on_finished(RequestId request, const ipc::Finished& finished,
                   const JournalEntry& entry) override;
  void on_failed(RequestId request, const Failure& failure) override;
  void on_answer(RequestId request, const ipc::FromWorker& answer) override;

  Choice* find(RequestId request);
  ChoicePart part(Choice& choice, std::string_view text, std::span<const ipc::TokenId> tokens);
  void send(std::string_view events);  // held back until the status line is out
  void begin_if_accepted();
  void fail(const ApiError& error);
  void respond(HttpResponse response);  // with the id under which the log has it
  void cancel_all();
  void end(int status, std::string_view how);
  Usage usage() const;

  Router& router_;
  Metrics& metrics_;
  std::shared_ptr<Exchange> exchange_;
  GenerationRequest request_;
  std::function<void()> finished_;
  AnswerHead head_;
  std::vector<Choice> choices_;
  Timer deadline_;
  Clock::time_point began_, first_token_;
  bool streaming_ = false;  // the status line is out
  bool over_ = false;
  std::string held_;
};

}  // namespace bulkhead::orchestrator
