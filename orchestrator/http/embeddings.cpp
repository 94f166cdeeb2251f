#include "orchestrator/http/embeddings.hpp"

#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "orchestrator/http/ollama.hpp"
#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

void read_input(Fields& fields, const char* name, EmbeddingRequest& request) {
  const json* input = fields.get(name);
  if (input == nullptr) return fields.refuse(name, "is missing.", "missing_parameter");
  const auto add = [&](const json& item) {
    if (item.is_string()) {
      if (is_text(item, "")) fields.refuse(name, "has an empty string.", "out_of_range");
      request.inputs.emplace_back(item.get<std::string>());
      return;
    }
    std::vector<ipc::TokenId> ids;
    if (!item.is_array() || item.empty()) {
      fields.refuse(name, "must be a string, an array of token ids, or an array of these.",
                    "invalid_type");
    } else if (read_ids(fields, name, item, ids)) {
      request.inputs.emplace_back(std::move(ids));
    }
  };
  const bool one = !input->is_array() || (!input->empty() && input->front().is_number());
  if (one) return add(*input);
  if (input->empty()) return fields.refuse(name, "is an empty array.", "out_of_range");
  if (request.form == EmbeddingForm::kOllamaSingle && input->size() > 1) {
    return fields.refuse(
        name, "has several inputs, and the answer one embedding; /api/embed takes several.",
        "out_of_range");
  }
  if (input->size() > kMaxEmbeddingInputs) {
    return fields.refuse(name, fmt::format("has more than {} inputs.", kMaxEmbeddingInputs),
                         "out_of_range");
  }
  for (const json& item : *input) {
    if (!fields.ok()) return;
    add(item);
  }
}

// Refuses what other servers put before a text, or make of its embedding.
void refuse_other_embeddings(Fields& fields) {
  for (const char* name : {"input_type", "prompt_name", "task", "instruction", "late_chunking",
                           "mm_processor_kwargs", "output_dtype", "embedding_type"}) {
    const json* value = fields.get(name);
    if (value == nullptr || is_empty(*value) || *value == false || is_text(*value, "float"))
      continue;
    fields.refuse(name,
                  "is not supported by this server, which takes texts as they are and answers with "
                  "floats; leave it out, and write what the model expects before a text into the "
                  "text.",
                  "unsupported_parameter");
  }
}

Parsed<EmbeddingRequest> parse_embeddings(EmbeddingForm form, std::string_view body) {
  Parsed<json> object = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&object)) return *error;
  Fields fields(std::get<json>(object));
  EmbeddingRequest request;
  request.form = form;
  request.model = fields.text("model");
  read_input(fields, form == EmbeddingForm::kOllamaSingle ? "prompt" : "input", request);
  request.truncate = form == EmbeddingForm::kOllama && fields.boolean("truncate", true);
  const std::string encoding = fields.text("encoding_format", "float");
  request.base64 = encoding == "base64" && form == EmbeddingForm::kOpenAi;
  if (encoding != "float" && encoding != "base64")
    fields.refuse("encoding_format", "must be 'float' or 'base64'.", "unsupported_parameter");
  // the name that Mistral and Voyage have for it
  const char* const size = fields.get("dimensions") == nullptr ? "output_dimension" : "dimensions";
  request.dimensions =
      static_cast<std::uint32_t>(fields.integer(size, 0, 1, std::int64_t{1} << 20));
  // llama.cpp's clients name the norm by which it divides an embedding. This server always divides by the
  // Euclidean norm, which has number 2.
  if (fields.integer("embd_normalize", 2, -1, 1000) != 2)
    fields.refuse("embd_normalize", "can only be 2 on this server.", "unsupported_parameter");
  for (const char* name : {"normalize", "normalized", "add_special_tokens"}) {
    if (!fields.boolean(name, true))
      fields.refuse(name, "can only be true on this server.", "unsupported_parameter");
  }
  if (fields.get("truncate_prompt_tokens") != nullptr) {
    fields.refuse("truncate_prompt_tokens",
                  "is not supported by this server: texts are taken whole.",
                  "unsupported_parameter");
  }
  refuse_other_embeddings(fields);
  if (!fields.ok()) return fields.error();
  return request;
}

}  // namespace

Parsed<EmbeddingRequest> parse_openai_embeddings(std::string_view body) {
  return parse_embeddings(EmbeddingForm::kOpenAi, body);
}
Parsed<EmbeddingRequest> parse_ollama_embed(std::string_view body) {
  return parse_embeddings(EmbeddingForm::kOllama, body);
}
Parsed<EmbeddingRequest> parse_ollama_embeddings(std::string_view body) {
  return parse_embeddings(EmbeddingForm::kOllamaSingle, body);
}

std::vector<float> normalised(std::vector<float> values, std::uint32_t dimensions) {
  if (dimensions != 0 && dimensions < values.size()) values.resize(dimensions);
  double squares = 0;
  for (const float value : values)
    squares += static_cast<double>(value) * value;
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  for (float& value : values)
    value = static_cast<float>(value * scale);
  return values;
}

std::string base64_of(std::span<const float> values) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  for (const float value : values) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8)
      bytes += static_cast<char>(word >> shift & 0xff);
  }
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t rest = std::min<std::size_t>(bytes.size() - i, 3);
    std::uint32_t group = 0;
    for (std::size_t n = 0; n < 3; ++n)
      group = group << 8 | (n < rest ? static_cast<unsigned char>(bytes[i + n]) : 0U);
    for (std::size_t n = 0; n < 4; ++n)
      text += n <= rest ? kDigits[group >> (18 - 6 * n) & 63] : '=';
  }
  return text;
}

Work EmbeddingAnswer::ask(std::size_t input) {
  ipc::Embed embed;
  embed.input = std::move(request_.inputs[input]);
  embed.truncate = request_.truncate;
  return embed;
}

std::optional<ApiError> EmbeddingAnswer::take(std::size_t input, const ipc::FromWorker& answer) {
  const auto& embedded = std::get<ipc::Embedded>(answer);
  if (request_.dimensions > embedded.values.size()) {
    return invalid(
        fmt::format("'dimensions' can be {} at most with this model.", embedded.values.size()),
        "dimensions", "out_of_range");
  }
  values_[input] = normalised(embedded.values, request_.dimensions);
  count(embedded.tokens);
  return std::nullopt;
}

std::string EmbeddingAnswer::value_of(std::size_t index) const {
  if (request_.base64) return "\"" + base64_of(values_[index]) + "\"";
  std::string out = "[";
  for (const float value : values_[index])
    fmt::format_to(std::back_inserter(out), "{}{}", out.size() > 1 ? "," : "", value);
  return out + "]";
}

std::string EmbeddingAnswer::whole() {
  if (request_.form == EmbeddingForm::kOllamaSingle) return "{\"embedding\":" + value_of(0) + "}";
  const bool openai = request_.form == EmbeddingForm::kOpenAi;
  std::string out = openai ? "{\"object\":\"list\",\"data\":[" : "{\"embeddings\":[";
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (i > 0) out += ',';
    if (openai)
      fmt::format_to(std::back_inserter(out),
                     "{{\"object\":\"embedding\",\"index\":{},\"embedding\":", i);
    out += value_of(i);
    if (openai) out += '}';
  }
  out += "],\"model\":";
  append_json_string(out, model_name());
  if (openai) {
    return out +
           fmt::format(",\"usage\":{{\"prompt_tokens\":{0},\"total_tokens\":{0}}}}}", tokens());
  }
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - arrived_);
  return out + fmt::format(",\"total_duration\":{},\"load_duration\":0,\"prompt_eval_count\":{}}}",
                           took.count(), tokens());
}

}  // namespace bulkhead::orchestrator
