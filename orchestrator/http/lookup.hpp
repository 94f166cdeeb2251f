// An answer that one message of a worker is: a text's tokens, tokens' text.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "orchestrator/http/answer.hpp"

namespace bulkhead::orchestrator {

// The body of a 200.
using RenderAnswer = std::string (*)(const ipc::FromWorker& answer);

class Lookup final : public Answer {
 public:
  Lookup(AnswerServices& services, std::string endpoint, std::shared_ptr<Exchange> exchange,
         RenderAnswer render)
      : Answer(services, std::move(endpoint)), exchange_(std::move(exchange)), render_(render) {}

  // Admitted to `model` already. It holds itself until it ends.
  void start(std::size_t model, Work work, std::chrono::seconds timeout) {
    hold();
    watch(*exchange_);
    start_deadline(timeout);
    request_ = services_.router.start(model, std::move(work), *this);
  }

 private:
  void on_answer(RequestId, const ipc::FromWorker& answer) override {
    request_ = {};
    HttpResponse response;
    response.body = render_(answer);
    respond(std::move(response));
  }
  void on_failed(RequestId request, const Failure& failure) override {
    request_ = {};
    // It or its answer has no room in the channel, and never will have.
    const bool never_fits = failure.code == ipc::FailureCode::kResourceExhausted ||
                            failure.code == ipc::FailureCode::kContextExceeded;
    if (never_fits) return fail(api_error(kBodyTooLarge, failure.message));
    Answer::on_failed(request, failure);
  }
  void fail(const ApiError& error) override {
    cancel();
    respond(to_response(error));
  }
  void lost(Exchange::Lost) override {
    cancel();
    end_as(499);
  }
  void respond(HttpResponse response) {
    const int status = response.status;
    exchange_->on_lost = nullptr;
    exchange_->respond(std::move(response));
    end_as(status);
  }
  std::vector<RequestId> unfinished() const override { return {request_}; }
  void cancel() {
    if (request_ != RequestId{}) services_.router.cancel(std::exchange(request_, RequestId{}));
  }
  void end_as(int status) {
    auto self = shared_from_this();
    end(status);
    release();
  }

  std::shared_ptr<Exchange> exchange_;
  RenderAnswer render_;
  RequestId request_;
};

}  // namespace bulkhead::orchestrator
