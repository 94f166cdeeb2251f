// Requests that end in what is made of a prompt's hidden states: embeddings, and scores of documents.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "worker/engine/engine_request.hpp"

namespace bulkhead::engine {

std::string Engine::cant_generate() const {
  if (executor_.limits().both_ways)
    return "this model reads a text in both directions and writes none; it makes embeddings "
           "(/v1/embeddings, /api/embed)";
  if (!language_.ranker.ok() || language_.ranker->generates) return {};
  return "this model only ranks documents (/v1/rerank): its file has no output matrix "
         "(output.weight), so it writes no text";
}

// A control token that ends the text, such as the vocabulary's separator, stays at its end.
void Engine::truncate(std::vector<TokenId>& text) const {
  const std::uint32_t limit = scheduler_.sequence_limit();
  if (text.size() <= limit) return;
  const TokenId last = text.back();
  text.resize(limit);
  if (language_.tokenizer != nullptr && language_.tokenizer->is_control(last)) text.back() = last;
}

Engine::Request* Engine::start_pooling(RequestId id) {
  const auto refused = [&](ipc::FailureCode code, const char* why) {
    fail(id, code, why);
    return nullptr;
  };
  if (executor_.limits().embedding == 0)
    return refused(ipc::FailureCode::kUnsupported,
                   "this worker computes neither embeddings nor scores");
  if (draining_) return refused(ipc::FailureCode::kResourceExhausted, kDraining);
  if (requests_.contains(id))
    return refused(ipc::FailureCode::kInternal, "the request's number is in use already");
  auto owned = std::make_unique<Request>();
  Request& request = *owned;
  request.id = id;
  request.pools = request.prompt_only = true;
  requests_.emplace(id, std::move(owned));
  return &request;
}

void Engine::embed(ipc::Embed job) {
  const bool embeds = executor_.limits().both_ways || cant_generate().empty();
  if (!embeds) return fail(job.request, ipc::FailureCode::kUnsupported, cant_generate(), "model");
  Request* const request = start_pooling(job.request);
  if (request == nullptr) return;
  request->truncates = job.truncate;
  if (auto* tokens = std::get_if<std::vector<TokenId>>(&job.input))
    return start(*request, std::move(*tokens));
  request->ticket = ++last_ticket_;
  tickets_.emplace(request->ticket, request->id);
  preparer_.submit(
      {request->ticket, Preparer::Text{std::move(std::get<std::string>(job.input))}, {}});
}

void Engine::rank(ipc::Rank job) {
  if (!language_.ranker.ok())
    return fail(job.request, ipc::FailureCode::kUnsupported, language_.ranker.error().message(),
                "model");
  Request* const request = start_pooling(job.request);
  if (request == nullptr) return;
  request->ranks = true;
  request->ticket = ++last_ticket_;
  tickets_.emplace(request->ticket, request->id);
  preparer_.submit({request->ticket, std::move(job), {}});
}

// A sequence that lost its pages computes some positions again; the sum already contains them.
void Engine::take_hidden(Request& request, const ColumnOutput& output, std::uint32_t position) {
  const bool last = position + 1 == request.prompt_tokens;
  const bool mean = request.prompt_output == Output::kHidden;
  if (mean && position != request.pooled_count) return;
  const bool numbers = std::ranges::all_of(output.hidden, [](float v) { return std::isfinite(v); });
  if (!numbers && compute_again(request)) {
    request.pooled.clear();
    request.pooled_count = 0;
    return;
  }
  request.pooled.resize(output.hidden.size());
  for (std::size_t i = 0; i < output.hidden.size(); ++i)
    request.pooled[i] += output.hidden[i];
  ++request.pooled_count;
  if (last) send_pooled(request);
}

void Engine::send_pooled(Request& request) {
  const RequestId id = request.id;
  std::vector<float> values;
  for (const double sum : request.pooled)
    values.push_back(static_cast<float>(sum / request.pooled_count));
  bool finite = std::ranges::all_of(values, [](float v) { return std::isfinite(v); });
  ipc::FromWorker answer;
  if (request.ranks) {
    const float score = language_.ranker->head.score(values);
    finite &= std::isfinite(score);
    answer = ipc::Ranked{id, request.prompt_tokens, score};
  } else {
    answer = ipc::Embedded{id, request.prompt_tokens, std::move(values)};
  }
  drop(request);
  if (!finite) return fail(id, ipc::FailureCode::kInternal, kNotFinite);
  if (ipc::encoded_bound(answer) > options_.max_message_bytes)
    return fail(id, ipc::FailureCode::kInternal,
                "an embedding doesn't fit the channel; raise ipc.ring_kib");
  emit_(answer);
  say_drained();
}

}  // namespace bulkhead::engine
