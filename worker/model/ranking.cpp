#include "worker/model/ranking.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "worker/model/float_rows.hpp"
#include "worker/model/vocabulary.hpp"

namespace bulkhead::model {
namespace {

constexpr std::uint64_t kMostOutputs = 1024;
constexpr std::uint64_t kMostDenseRows = 1U << 14;
constexpr std::size_t kMostParts = 32;  // of a template
constexpr std::string_view kQuery = "{query}", kDocument = "{document}";

Error damaged(const GgufFile& file, const std::string& what) {
  return Error(ErrorCode::kCorrupt,
               file.name() + ": " + what + "; the file is damaged or was converted wrongly");
}

// Reads NAME.weight with rows of `width` entries, and NAME.bias if the file has it.
Result<HeadMatrix> read_matrix(const GgufFile& file, const std::string& name, std::uint64_t width,
                               std::uint64_t most_rows) {
  const TensorInfo& weights = *file.find_tensor(name + ".weight");
  if (traits(weights.type) == nullptr || weights.ne[0] != width || weights.rows() == 0 ||
      weights.rows() != weights.ne[1] || weights.ne[1] > most_rows)
    return damaged(file, "tensor " + name + ".weight is not a matrix of at most " +
                             std::to_string(most_rows) + " rows of " + std::to_string(width) +
                             " entries");
  HeadMatrix matrix{width, float_rows(weights), {}};
  if (const TensorInfo* const biases = file.find_tensor(name + ".bias"); biases != nullptr) {
    if (traits(biases->type) == nullptr || biases->elements() != matrix.rows())
      return damaged(file, "tensor " + name + ".bias has not one entry for each of " +
                               std::to_string(matrix.rows()) + " rows");
    matrix.biases = float_rows(*biases);
  }
  return matrix;
}

// Reads NAME.weight, and NAME.bias if the file has it.
Result<HeadNorm> read_norm(const GgufFile& file, const std::string& name, std::uint64_t width,
                           double epsilon) {
  HeadNorm norm;
  norm.epsilon = epsilon;
  for (const bool is_bias : {false, true}) {
    const std::string tensor = name + (is_bias ? ".bias" : ".weight");
    const TensorInfo* const found = file.find_tensor(tensor);
    if (is_bias && found == nullptr) continue;
    if (traits(found->type) == nullptr || found->elements() != width)
      return damaged(file, "tensor " + tensor + " has not one entry for each of " +
                               std::to_string(width) + " results of the dense layer");
    (is_bias ? norm.biases : norm.gains) = float_rows(*found);
  }
  return norm;
}

// Returns which of several outputs says that a document is relevant.
Result<std::uint64_t> relevant_output(const GgufFile& file, const ModelGraph& graph,
                                      std::uint64_t outputs) {
  const std::string key = graph.architecture + ".classifier.output_labels";
  BULKHEAD_TRY(const auto labels, file.get_strings(key));
  if (!labels || labels->empty()) return 0;
  if (labels->size() != outputs)
    return damaged(file, "metadata key " + key + " has " + std::to_string(labels->size()) +
                             " labels; cls.output.weight has " + std::to_string(outputs) + " rows");
  const auto yes = std::ranges::find(*labels, "yes");
  if (yes != labels->end()) return static_cast<std::uint64_t>(yes - labels->begin());
  if (outputs == 1) return 0;
  return Error(ErrorCode::kUnsupported, "this model has a classifier of " +
                                            std::to_string(outputs) +
                                            " labels, and none of them is \"yes\" (" + key +
                                            "): nothing says which one makes a document relevant");
}

Result<RankHead> read_head(const GgufFile& file, const ModelGraph& graph) {
  const bool has_norm = file.find_tensor("cls.norm.weight") != nullptr;
  const bool has_dense = file.find_tensor("cls.weight") != nullptr;
  if (has_norm && graph.ranking.norm_epsilon == 0)
    return Error(ErrorCode::kUnsupported,
                 "this model's classification head has a norm (cls.norm.weight), which is not "
                 "supported for architecture " +
                     graph.architecture);
  if (has_norm && !has_dense)
    return Error(ErrorCode::kUnsupported,
                 "this model's classification head has a norm (cls.norm.weight) without a dense "
                 "layer (cls.weight) before it, which is not supported");
  RankHead head;
  std::uint64_t width = graph.embedding;
  if (has_dense) {
    BULKHEAD_TRY(head.dense, read_matrix(file, "cls", width, kMostDenseRows));
    width = head.dense->rows();
    if (graph.ranking.gelu) head.function = RankHead::Function::kGelu;
  }
  if (has_norm) {
    const auto epsilon = static_cast<double>(graph.ranking.norm_epsilon);
    BULKHEAD_TRY(head.norm, read_norm(file, "cls.norm", width, epsilon));
  }
  BULKHEAD_TRY(head.output, read_matrix(file, "cls.output", width, kMostOutputs));
  BULKHEAD_TRY(head.relevant, relevant_output(file, graph, head.output.rows()));
  return head;
}

bool has_both_marks(std::string_view text) {
  return text.find(kQuery) != std::string_view::npos &&
         text.find(kDocument) != std::string_view::npos;
}

Result<RankPrompt> prompt_of_template(std::string_view text) {
  RankPrompt prompt;
  while (!text.empty()) {
    const std::size_t query = text.find(kQuery), document = text.find(kDocument);
    const std::size_t mark = std::min({query, document, text.size()});
    if (mark > 0)
      prompt.parts.push_back({RankPrompt::Kind::kText, std::string(text.substr(0, mark))});
    text.remove_prefix(mark);
    if (text.empty()) break;
    const bool is_query = query < document;
    prompt.parts.push_back({is_query ? RankPrompt::Kind::kQuery : RankPrompt::Kind::kDocument});
    text.remove_prefix(is_query ? kQuery.size() : kDocument.size());
  }
  if (prompt.parts.size() > kMostParts)
    return Error(ErrorCode::kUnsupported,
                 "the template for ranking has {query} and {document} in too many places");
  return prompt;
}

// Returns the form of a file without a template: BOS, query, EOS, separator, document, EOS, as far as the vocabulary
// puts these tokens around texts.
Result<RankPrompt> prompt_of_vocabulary(const GgufFile& file, const Tokenizer& tokenizer,
                                        bool one_separator) {
  BULKHEAD_TRY(const auto adds_eos, file.get_bool("tokenizer.ggml.add_eos_token"));
  BULKHEAD_TRY(const auto adds_separator, file.get_bool("tokenizer.ggml.add_sep_token"));
  BULKHEAD_TRY(const auto id,
               named_token(file, "tokenizer.ggml.seperator_token_id"));  // GGUF writes it so
  // WordPiece puts its separator after each text, unless the file says otherwise.
  BULKHEAD_TRY(const auto kind, file.get_string("tokenizer.ggml.model"));
  const bool ends = adds_eos.value_or(kind == "bert" && !adds_separator.has_value());
  std::optional<TokenId> separator;
  if (id && *id < tokenizer.size()) separator = static_cast<TokenId>(*id);
  const std::optional<TokenId> end = tokenizer.eos() ? tokenizer.eos() : separator;
  const bool separates =
      adds_separator.value_or(false) && !(one_separator && ends && separator == end);
  RankPrompt prompt;
  const auto add = [&prompt](bool wanted, std::optional<TokenId> token) {
    if (wanted && token) prompt.parts.push_back({RankPrompt::Kind::kToken, {}, *token});
  };
  add(tokenizer.adds_bos(), tokenizer.bos());
  prompt.parts.push_back({RankPrompt::Kind::kQuery});
  const std::size_t before = prompt.parts.size();
  add(ends, end);
  add(separates, separator);
  if (prompt.parts.size() == before)
    return Error(ErrorCode::kUnsupported,
                 "this model's file has a classification head, but neither a template of the name "
                 "rerank nor a token between query and document; name a template with {query} and "
                 "{document} in models[].chat_template");
  prompt.parts.push_back({RankPrompt::Kind::kDocument});
  add(ends, end);
  return prompt;
}

Result<RankPrompt> read_prompt(const GgufFile& file, const Tokenizer& tokenizer, bool one_separator,
                               std::string_view asked_template) {
  if (has_both_marks(asked_template)) return prompt_of_template(asked_template);
  BULKHEAD_TRY(const auto own, file.get_string("tokenizer.chat_template.rerank"));
  if (!own) return prompt_of_vocabulary(file, tokenizer, one_separator);
  if (has_both_marks(*own)) return prompt_of_template(*own);
  return Error(ErrorCode::kUnsupported,
               "the template rerank of this model's file lacks {query} or {document}; name a "
               "template that has both in models[].chat_template");
}

}  // namespace

std::vector<double> HeadMatrix::times(std::span<const double> input) const {
  std::vector<double> results(rows());
  for (std::size_t row = 0; row < results.size(); ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i)
      sum += static_cast<double>(weights[row * width + i]) * input[i];
    results[row] = biases.empty() ? sum : sum + static_cast<double>(biases[row]);
  }
  return results;
}

void HeadNorm::apply(std::span<double> values) const {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values)
    squares += (value - mean) * (value - mean);
  const double scale = 1 / std::sqrt(squares / count + epsilon);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = (values[i] - mean) * scale * static_cast<double>(gains[i]);
    if (!biases.empty()) values[i] += static_cast<double>(biases[i]);
  }
}

float RankHead::score(std::span<const float> state) const {
  std::vector<double> input(state.begin(), state.end());
  if (dense) {
    input = dense->times(input);
    for (double& value : input)
      value = function == Function::kTanh ? std::tanh(value)
                                          : value / 2 * (1 + std::erf(value / std::numbers::sqrt2));
  }
  if (norm) norm->apply(input);
  const std::vector<double> logits = output.times(input);
  if (logits.size() == 1) return static_cast<float>(logits.front());
  const double best = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits)
    sum += std::exp(logit - best);
  return static_cast<float>(std::exp(logits[relevant] - best) / sum);
}

std::vector<TokenId> RankPrompt::tokens(const Tokenizer& tokenizer, std::string_view query,
                                        std::string_view document) const {
  std::vector<TokenId> made;
  std::vector<Segment> run;  // texts that are tokenized as one
  const auto flush = [&] {
    const std::vector<TokenId> encoded = tokenizer.encode(run, false);
    made.insert(made.end(), encoded.begin(), encoded.end());
    run.clear();
  };
  for (const Part& part : parts) {
    switch (part.kind) {
      case Kind::kText:
        run.push_back({part.text, true});
        break;
      case Kind::kQuery:
        run.push_back({query, false});
        break;
      case Kind::kDocument:
        run.push_back({document, false});
        break;
      case Kind::kToken:
        flush();
        made.push_back(part.token);
        break;
    }
  }
  flush();
  return made;
}

bool has_rank_head(const GgufFile& file) {
  return file.find_tensor("cls.output.weight") != nullptr;
}

Result<Ranker> load_ranker(const GgufFile& file, const Tokenizer& tokenizer,
                           const ModelGraph& graph, std::string_view asked_template) {
  if (!has_rank_head(file)) {
    return Error(ErrorCode::kUnsupported,
                 "this model does not rank documents: its file has no classification head "
                 "(cls.output.weight); load one that ranks, such as Qwen3-Reranker as llama.cpp "
                 "converts it, or compare vectors of /v1/embeddings");
  }
  // Such a model expects type 0 for the query's tokens and type 1 for the document's. The worker gives all tokens
  // type 0.
  BULKHEAD_TRY(const auto types, file.get_uint("tokenizer.ggml.token_type_count"));
  if (types.value_or(1) > 1)
    return Error(ErrorCode::kUnsupported,
                 "this model ranks by tokens of " + std::to_string(*types) +
                     " types (tokenizer.ggml.token_type_count), which are not supported; load "
                     "Qwen3-Reranker, or compare vectors of /v1/embeddings");
  Ranker ranker;
  BULKHEAD_TRY(ranker.head, read_head(file, graph));
  BULKHEAD_TRY(ranker.prompt,
               read_prompt(file, tokenizer, graph.ranking.one_separator, asked_template));
  ranker.generates = file.find_tensor("output.weight") != nullptr;
  return ranker;
}

}  // namespace bulkhead::model
