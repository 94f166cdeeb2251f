// Embeddings: requests in OpenAI's and Ollama's forms, and the answer, which asks a worker for each input.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "orchestrator/http/answer.hpp"
#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {

inline constexpr std::size_t kMaxEmbeddingInputs = 2048;

enum class EmbeddingForm {
  kOpenAi,        // POST /v1/embeddings
  kOllama,        // POST /api/embed
  kOllamaSingle,  // POST /api/embeddings, its older form
};

struct EmbeddingRequest {
  EmbeddingForm form = EmbeddingForm::kOpenAi;
  std::string model;
  std::vector<decltype(ipc::Embed::input)> inputs;
  bool base64 = false;
  std::uint32_t dimensions = 0;  // 0: as many as the model's embeddings have
};
Parsed<EmbeddingRequest> parse_openai_embeddings(std::string_view body);
Parsed<EmbeddingRequest> parse_ollama_embed(std::string_view body);
Parsed<EmbeddingRequest> parse_ollama_embeddings(std::string_view body);

// Returns the first `dimensions` values (0: all), divided by their Euclidean norm. If all are zero, they stay zero.
std::vector<float> normalised(std::vector<float> values, std::uint32_t dimensions);
// Writes the values as base64 of little-endian floats, as OpenAI's clients read them.
std::string base64_of(std::span<const float> values);

class EmbeddingAnswer final : public ConnectedAnswer {
 public:
  EmbeddingAnswer(AnswerServices& services, std::string endpoint, RefusalForm refuse,
                  std::shared_ptr<Exchange> exchange, EmbeddingRequest request)
      : ConnectedAnswer(services, std::move(endpoint), refuse, std::move(exchange)),
        request_(std::move(request)) {}

  // Begins. The router must have admitted the request to `model`.
  void start(std::size_t model, std::chrono::seconds timeout);

 private:
  void on_answer(RequestId request, const ipc::FromWorker& answer) override;
  void on_failed(RequestId request, const Failure& failure) override;

  std::vector<RequestId> unfinished() const override;
  void ask_next();
  void cancel() override;
  std::string whole() override;
  std::string value_of(std::size_t index) const;

  EmbeddingRequest request_;
  std::size_t model_ = 0;
  std::string model_name_;
  std::unordered_map<RequestId, std::size_t> asked_;  // the inputs that workers have
  std::size_t next_ = 0;                              // the next input to ask for
  std::vector<std::vector<float>> values_;            // for each input
  std::uint64_t tokens_ = 0;
  const Clock::time_point arrived_ = Clock::now();
};

}  // namespace bulkhead::orchestrator
