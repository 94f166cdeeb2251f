// Embeddings: requests in OpenAI's and Ollama's forms, and the answer, which asks a worker for each input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/inputs_answer.hpp"
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
  bool truncate = false;         // inputs that don't fit the context are cut
  std::uint32_t dimensions = 0;  // 0: as many as the model's embeddings have
};
Parsed<EmbeddingRequest> parse_openai_embeddings(std::string_view body);
Parsed<EmbeddingRequest> parse_ollama_embed(std::string_view body);
Parsed<EmbeddingRequest> parse_ollama_embeddings(std::string_view body);

// Returns the first `dimensions` values (0: all), divided by their Euclidean norm. If all are zero, they stay zero.
// All must be finite: check_limits() (worker_limits.hpp) ends a worker that sends others.
std::vector<float> normalised(std::vector<float> values, std::uint32_t dimensions);
// Writes the values as base64 of little-endian floats, as OpenAI's clients read them.
std::string base64_of(std::span<const float> values);

class EmbeddingAnswer final : public InputsAnswer {
 public:
  EmbeddingAnswer(AnswerServices& services, std::string endpoint, RefusalForm refuse,
                  std::shared_ptr<Exchange> exchange, EmbeddingRequest request)
      : InputsAnswer(services, std::move(endpoint), refuse, std::move(exchange),
                     request.inputs.size()),
        request_(std::move(request)),
        values_(request_.inputs.size()) {}

 private:
  Work ask(std::size_t input) override;
  std::optional<ApiError> take(std::size_t input, const ipc::FromWorker& answer) override;
  std::string whole() override;
  std::string value_of(std::size_t index) const;

  EmbeddingRequest request_;
  std::vector<std::vector<float>> values_;  // for each input
  const Clock::time_point arrived_ = Clock::now();
};

}  // namespace bulkhead::orchestrator
