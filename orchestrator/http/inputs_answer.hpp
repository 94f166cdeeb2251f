// An answer for which a model computes each of the request's inputs by itself: embeddings, scores of documents. Workers
// have a few inputs at a time, and their results come in any order.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "orchestrator/http/answer.hpp"

namespace bulkhead::orchestrator {

class InputsAnswer : public ConnectedAnswer {
 public:
  // Begins. The router must have admitted the request to `model`.
  void start(std::size_t model, std::chrono::seconds timeout);

 protected:
  InputsAnswer(AnswerServices& services, std::string endpoint, RefusalForm refuse,
               std::shared_ptr<Exchange> exchange, std::size_t inputs)
      : ConnectedAnswer(services, std::move(endpoint), refuse, std::move(exchange)),
        inputs_(inputs) {}

  // Returns the message that asks a worker for the input's result. Called once for each input.
  virtual Work ask(std::size_t input) = 0;
  // Takes the input's result; returns an error if the whole answer fails with it.
  virtual std::optional<ApiError> take(std::size_t input, const ipc::FromWorker& answer) = 0;
  // Returns the error that ends the answer if the input's computation fails.
  virtual ApiError error_of(std::size_t input, const Failure& failure) const;
  // Counts an input's tokens, also against the limits of the client's key.
  void count(std::uint32_t tokens);

  const std::string& model_name() const { return model_name_; }
  std::uint64_t tokens() const { return tokens_; }

 private:
  void on_answer(RequestId request, const ipc::FromWorker& answer) override;
  void on_failed(RequestId request, const Failure& failure) override;
  std::vector<RequestId> unfinished() const override;
  void cancel() override;
  void ask_next();

  const std::size_t inputs_;
  std::size_t model_ = 0;
  std::string model_name_;
  std::unordered_map<RequestId, std::size_t> asked_;  // the inputs that workers have
  std::size_t next_ = 0;                              // the next input to ask for
  std::uint64_t tokens_ = 0;
};

}  // namespace bulkhead::orchestrator
