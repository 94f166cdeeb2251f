// Models that rank: the prompt that the model's file demands for a query and a document, and the classification head
// that turns the last hidden state into the document's score. The host computes the head, which has a few rows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {

// A matrix on the host: rows of `width` floats, and a bias for each row if there are any.
struct HeadMatrix {
  std::uint64_t width = 0;
  std::vector<float> weights, biases;

  std::uint64_t rows() const { return width == 0 ? 0 : weights.size() / width; }
  // Sums in double, in the order of the entries.
  std::vector<double> times(std::span<const double> input) const;
};

// A layer norm on the host.
struct HeadNorm {
  std::vector<float> gains, biases;  // without biases: none
  double epsilon = 0;

  void apply(std::span<double> values) const;
};

// The head: output * norm(function(dense * state)), or output * state if there is no dense layer. The norm may be
// missing. With one output, the score is that number. With several, it is the softmax's probability of the output
// `relevant`.
struct RankHead {
  enum class Function : std::uint8_t { kTanh, kGelu };

  std::optional<HeadMatrix> dense;
  Function function = Function::kTanh;
  std::optional<HeadNorm> norm;
  HeadMatrix output;
  std::uint64_t relevant = 0;

  float score(std::span<const float> state) const;
};

// What the model reads for a query and a document, in order.
struct RankPrompt {
  enum class Kind : std::uint8_t {
    kText,  // the template's; may have special tokens
    kQuery,
    kDocument,
    kToken,
  };
  struct Part {
    Kind kind = Kind::kText;
    std::string text = {};
    TokenId token = 0;
  };
  std::vector<Part> parts;

  // The client's texts never become special tokens.
  std::vector<TokenId> tokens(const Tokenizer& tokenizer, std::string_view query,
                              std::string_view document) const;
};

struct Ranker {
  RankHead head;
  RankPrompt prompt;
  // Whether the file has a matrix of its own for the output of text. Converters leave it out of most models that rank,
  // and then nothing says whether the embeddings could stand for it.
  bool generates = false;
};

// Reads what the file has for ranking: the tensors cls.*, ARCHITECTURE.classifier.output_labels, and the template
// tokenizer.chat_template.rerank, or the tokens that its vocabulary puts around texts. `asked_template` is used
// instead of the file's template if it has {query} and {document}. `graph` is the file's model. kUnsupported: the model
// does not rank, and why; kCorrupt: the file is damaged.
Result<Ranker> load_ranker(const GgufFile& file, const Tokenizer& tokenizer,
                           const ModelGraph& graph, std::string_view asked_template);

// Returns whether the file has a head for ranking, for `inspect`.
bool has_rank_head(const GgufFile& file);

}  // namespace bulkhead::model
