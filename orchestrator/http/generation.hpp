// One completion or chat answer that lives as long as its client's connection: its choices, each of which is a
// request in the router. It collects or streams what the router reports, and cancels everything when the client is
// gone or the time is up.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/http/answer.hpp"
#include "orchestrator/http/choice.hpp"

namespace bulkhead::orchestrator {

class Generation final : public ConnectedAnswer {
 public:
  Generation(AnswerServices& services, std::string endpoint, RefusalForm refuse,
             std::shared_ptr<Exchange> exchange, GenerationRequest request);

  // Begins. The request must be admitted to `model`. The object keeps itself alive until it ends.
  void start(std::size_t model, std::chrono::seconds timeout);

 private:
  struct Running {
    Choice choice;
    RequestId request = {};  // 0 once the request is over
    Clock::time_point first_tokens = {}, last_tokens = {};
  };

  void on_warnings(RequestId request, std::span<const std::string> warnings) override;
  void on_accepted(RequestId request, std::span<const ipc::TokenId> prompt_tokens) override;
  void on_prompt_tokens(RequestId request, std::span<const ipc::TokenLogprob> tokens) override;
  void on_tokens(const ipc::SequenceTokensView& view) override;
  void on_finished(RequestId request, const ipc::Finished& finished) override;
  void on_failed(RequestId request, const Failure& failure) override;
  void cancel() override;
  std::string whole() override;

  Running* find(RequestId request);
  std::string echoed(std::size_t prompt) const;  // the prompt's text, if it is a text and is to be echoed
  Usage usage() const;
  Facts facts() const override;
  std::vector<RequestId> unfinished() const override;

  GenerationRequest request_;
  AnswerHead head_;
  std::vector<Running> choices_;
  Choice::Emit emit_;  // events are held back until the stream's head is sent
  std::string held_;
};

}  // namespace bulkhead::orchestrator
