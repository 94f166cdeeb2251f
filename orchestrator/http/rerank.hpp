// Scores of documents for a query: requests in the form of Jina, Cohere and llama.cpp, or of Text Embeddings Inference
// (TEI), and the answer, which asks a worker for each document.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/inputs_answer.hpp"
#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {

inline constexpr std::size_t kMaxRankedDocuments = 2048;

struct RerankRequest {
  bool tei = false;  // the request has `texts`, and the answer has TEI's form
  std::string model;
  std::string query;
  std::vector<std::string> documents;
  std::size_t top_n = 0;  // how many results the answer has; at most as many as there are documents
  bool return_documents = false;
};
Parsed<RerankRequest> parse_rerank(std::string_view body);

class RerankAnswer final : public InputsAnswer {
 public:
  RerankAnswer(AnswerServices& services, std::string endpoint, RefusalForm refuse,
               std::shared_ptr<Exchange> exchange, RerankRequest request)
      : InputsAnswer(services, std::move(endpoint), refuse, std::move(exchange),
                     request.documents.size()),
        request_(std::move(request)),
        scores_(request_.documents.size()) {}

 private:
  Work ask(std::size_t input) override;
  std::optional<ApiError> take(std::size_t input, const ipc::FromWorker& answer) override;
  ApiError error_of(std::size_t input, const Failure& failure) const override;
  std::string whole() override;
  void append_result(std::string& out, std::size_t document) const;

  RerankRequest request_;
  std::vector<float> scores_;  // for each document
};

}  // namespace bulkhead::orchestrator
