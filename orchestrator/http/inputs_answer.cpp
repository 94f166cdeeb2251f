#include "orchestrator/http/inputs_answer.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kAskedAtOnce = 16;  // how many inputs of one request workers have at the same time

}  // namespace

void InputsAnswer::start(std::size_t model, std::chrono::seconds timeout) {
  begin(timeout);
  model_ = model;
  model_name_ = services_.router.models()[model].id;
  services_.router.expect(*this, model, inputs_, 0);
  while (next_ < inputs_ && asked_.size() < kAskedAtOnce)
    ask_next();
}

void InputsAnswer::ask_next() {
  const std::size_t input = next_++;
  asked_.emplace(services_.router.start(model_, ask(input), *this), input);
}

ApiError InputsAnswer::error_of(std::size_t, const Failure& failure) const {
  return to_api_error(failure);
}

void InputsAnswer::count(std::uint32_t tokens) {
  tokens_ += tokens;
  charge(tokens);
}

void InputsAnswer::on_answer(RequestId request, const ipc::FromWorker& answer) {
  auto self = shared_from_this();
  const auto found = asked_.find(request);
  if (found == asked_.end()) return;
  const std::size_t input = found->second;
  asked_.erase(found);
  if (const std::optional<ApiError> error = take(input, answer)) return fail(*error);
  if (next_ < inputs_) return ask_next();
  if (asked_.empty()) finish("");
}

void InputsAnswer::on_failed(RequestId request, const Failure& failure) {
  const auto found = asked_.find(request);
  if (found == asked_.end()) return Answer::on_failed(request, failure);
  const std::size_t input = found->second;
  asked_.erase(found);
  fail(error_of(input, failure));
}

std::vector<RequestId> InputsAnswer::unfinished() const {
  std::vector<RequestId> requests;
  for (const auto& [request, input] : asked_)
    requests.push_back(request);
  return requests;
}

void InputsAnswer::cancel() {
  for (const auto& [request, input] : std::exchange(asked_, {}))
    services_.router.cancel(request);
}

}  // namespace bulkhead::orchestrator
