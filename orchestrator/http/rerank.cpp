#include "orchestrator/http/rerank.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

#include <spdlog/fmt/fmt.h>

#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

// What other servers do to texts or scores on request.
constexpr const char* kRefused[] = {
    "rank_fields", "max_tokens_per_doc", "max_chunks_per_doc", "truncate_prompt_tokens", "truncate",
    "raw_scores",  "instruction",        "instruct",           "mm_processor_kwargs"};

void read_documents(Fields& fields, RerankRequest& request) {
  const char* const name = request.tei ? "texts" : "documents";
  const json* const documents = fields.get(name);
  if (documents == nullptr)
    return fields.refuse(name, "is missing: the texts to rank.", "missing_parameter");
  if (!documents->is_array()) return fields.wrong_type(name, "an array of texts", *documents);
  if (documents->empty()) return fields.refuse(name, "is an empty array.", "out_of_range");
  if (documents->size() > kMaxRankedDocuments) {
    return fields.refuse(name, fmt::format("has more than {} texts.", kMaxRankedDocuments),
                         "out_of_range");
  }
  for (const json& item : *documents) {
    const bool object = item.is_object() && item.contains("text");
    const json& text = object ? item.at("text") : item;
    if (!text.is_string())
      return fields.refuse(name, "must be an array of texts, or of objects with a 'text'.",
                           "invalid_type");
    request.documents.push_back(text.get<std::string>());
  }
}

// Says whether a field asks for nothing.
bool does_nothing(const json& value) {
  return is_empty(value) || value == false || value == 0;
}

}  // namespace

Parsed<RerankRequest> parse_rerank(std::string_view body) {
  Parsed<json> object = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&object)) return *error;
  Fields fields(std::get<json>(object));
  RerankRequest request;
  request.model = fields.text("model");
  request.query = fields.text("query");
  if (request.query.empty())
    fields.refuse("query", "is missing or empty: the text that documents are compared with.",
                  "missing_parameter");
  request.tei = fields.get("texts") != nullptr;
  read_documents(fields, request);
  const std::size_t count = request.documents.size();
  // the name that Voyage has for it
  const char* const most = fields.get("top_n") == nullptr ? "top_k" : "top_n";
  const std::int64_t top =
      fields.integer(most, static_cast<std::int64_t>(count), 1, std::int64_t{1} << 31);
  request.top_n = std::min(static_cast<std::size_t>(std::max<std::int64_t>(top, 0)), count);
  request.return_documents =
      fields.boolean(request.tei ? "return_text" : "return_documents", false);
  for (const char* const name : {"use_activation", "activation"}) {  // vLLM's
    if (!fields.boolean(name, true))
      fields.refuse(name, "can only be true on this server.", "unsupported_parameter");
  }
  for (const char* const name : kRefused) {
    const json* const value = fields.get(name);
    if (value != nullptr && !does_nothing(*value))
      fields.refuse(
          name,
          "is not supported here: texts are taken whole, in the form of the model's file, "
          "and scores are the model's own.",
          "unsupported_parameter");
  }
  if (!fields.ok()) return fields.error();
  return request;
}

Work RerankAnswer::ask(std::size_t input) {
  ipc::Rank rank;
  rank.query = request_.query;
  rank.document = request_.documents[input];
  return rank;
}

std::optional<ApiError> RerankAnswer::take(std::size_t input, const ipc::FromWorker& answer) {
  const auto& ranked = std::get<ipc::Ranked>(answer);
  scores_[input] = ranked.score;  // finite: check_limits() (worker_limits.hpp) has checked it
  count(ranked.tokens);
  return std::nullopt;
}

// Says which of the documents is at fault.
ApiError RerankAnswer::error_of(std::size_t input, const Failure& failure) const {
  ApiError error = to_api_error(failure);
  if (error.parameter == "documents")
    error.parameter = fmt::format("{}[{}]", request_.tei ? "texts" : "documents", input);
  return error;
}

void RerankAnswer::append_result(std::string& out, std::size_t document) const {
  fmt::format_to(std::back_inserter(out), "{{\"index\":{},\"{}\":{}", document,
                 request_.tei ? "score" : "relevance_score", scores_[document]);
  if (request_.return_documents) {
    out += request_.tei ? ",\"text\":" : ",\"document\":{\"text\":";
    append_json_string(out, request_.documents[document]);
    if (!request_.tei) out += '}';
  }
  out += '}';
}

// The best document comes first; of documents with equal scores, the one that the request names first.
std::string RerankAnswer::whole() {
  std::vector<std::size_t> order(scores_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [this](std::size_t a, std::size_t b) { return scores_[a] > scores_[b]; });
  order.resize(request_.top_n);
  std::string results = "[";
  for (const std::size_t document : order) {
    if (results.size() > 1) results += ',';
    append_result(results, document);
  }
  results += ']';
  if (request_.tei) return results;
  std::string out = "{\"object\":\"list\",\"model\":";
  append_json_string(out, model_name());
  return out + ",\"results\":" + results +
         fmt::format(",\"usage\":{{\"prompt_tokens\":{0},\"total_tokens\":{0}}}}}", tokens());
}

}  // namespace bulkhead::orchestrator
