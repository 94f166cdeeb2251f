// Handles a request that a worker answers with one message (questions.hpp).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/http/answer.hpp"

namespace bulkhead::orchestrator {

// Renders the body of a 200 response.
using RenderAnswer = std::string (*)(const ipc::FromWorker& answer);

class Lookup final : public ConnectedAnswer {
 public:
  Lookup(AnswerServices& services, std::string endpoint, RefusalForm refuse,
         std::shared_ptr<Exchange> exchange, RenderAnswer render)
      : ConnectedAnswer(services, std::move(endpoint), refuse, std::move(exchange)),
        render_(render) {}

  // Begins. The router must have admitted the request to `model`.
  void start(std::size_t model, Work work, std::chrono::seconds timeout) {
    begin(timeout);
    request_ = services_.router.start(model, std::move(work), *this);
  }

 private:
  void on_answer(RequestId, const ipc::FromWorker& answer) override {
    request_ = {};
    body_ = render_(answer);
    finish("");
  }
  void on_failed(RequestId request, const Failure& failure) override {
    request_ = {};
    // The channel will never have room for the question or its answer.
    const bool never_fits = failure.code == ipc::FailureCode::kResourceExhausted ||
                            failure.code == ipc::FailureCode::kContextExceeded;
    if (never_fits) return fail(api_error(kBodyTooLarge, failure.message));
    Answer::on_failed(request, failure);
  }
  std::string whole() override { return std::move(body_); }
  std::vector<RequestId> unfinished() const override { return {request_}; }
  void cancel() override {
    if (request_ != RequestId{}) services_.router.cancel(std::exchange(request_, RequestId{}));
  }

  RenderAnswer render_;
  RequestId request_;
  std::string body_;
};

}  // namespace bulkhead::orchestrator
