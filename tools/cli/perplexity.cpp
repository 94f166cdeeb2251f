// `bulkhead perplexity`: how well a served model predicts a text. The worker computes the log-probabilities, as it
// does for any client that asks /v1/completions to echo its prompt.
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/cli/commands.hpp"
#include "tools/cli/perplexity_sum.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

using Tokens = std::vector<std::uint32_t>;

// Reads token ids in the form that `bulkhead tokenize` prints.
Result<Tokens> ids_of(const std::string& text) {
  std::istringstream words(text);
  Tokens tokens;
  for (std::string word; words >> word;) {
    const bool digits = word.find_first_not_of("0123456789") == std::string::npos;
    const unsigned long long id = digits && word.size() <= 10 ? std::stoull(word) : UINT64_MAX;
    if (id > std::numeric_limits<std::int32_t>::max())
      return Error(ErrorCode::kInvalidArgument, "'" + word.substr(0, 40) + "' is no token id");
    tokens.push_back(static_cast<std::uint32_t>(id));
  }
  return tokens;
}

class Model {
 public:
  Model(HttpClient client, std::string name) : client_(std::move(client)), name_(std::move(name)) {
    client_.answer_within(std::nullopt);  // a long text takes its time
  }

  Result<Tokens> tokenize(const std::string& text, bool special) {
    const json request = {{"model", name_}, {"prompt", text}, {"add_special", special}};
    BULKHEAD_TRY(const json body, ask("/tokenize", request));
    Tokens tokens;
    const json list = body.value("tokens", json());
    if (!list.is_array()) return no_answer();
    for (const json& each : list) {
      if (!each.is_number_unsigned()) return no_answer();
      tokens.push_back(each.get<std::uint32_t>());
    }
    return tokens;
  }

  // Returns the token that the model puts before a text; empty if it puts none.
  Result<Tokens> bos() {
    BULKHEAD_TRY(const Tokens with, tokenize("a", true));
    BULKHEAD_TRY(const Tokens without, tokenize("a", false));
    if (with.size() > without.size() && with.front() != without.front())
      return Tokens{with.front()};
    return Tokens{};
  }

  // Returns the logarithm of each token's probability after the tokens before it; 0 for the first
  // token.
  Result<std::vector<double>> logprobs(const Tokens& tokens) {
    const json request = {{"model", name_}, {"prompt", tokens}, {"echo", true},
                          {"logprobs", 0},  {"max_tokens", 0},  {"temperature", 0}};
    BULKHEAD_TRY(const json body, ask("/v1/completions", request));
    const json choices = body.value("choices", json());
    if (!choices.is_array() || choices.empty() || !choices[0].is_object()) return no_answer();
    const json all = choices[0].value("logprobs", json());
    const json values = all.is_object() ? all.value("token_logprobs", json()) : json();
    if (!values.is_array() || values.size() != tokens.size()) return no_answer();
    std::vector<double> logprobs = {0};
    for (std::size_t i = 1; i < values.size(); ++i) {
      if (!values[i].is_number()) return no_answer();
      logprobs.push_back(values[i].get<double>());
    }
    return logprobs;
  }

 private:
  Result<json> ask(const char* path, const json& request) {
    BULKHEAD_TRY(const HttpResponse response, client_.post(path, json_text(request)));
    if (response.status != 200) return api_error(response);
    json body = json::parse(response.body, nullptr, false);
    if (!body.is_object()) return no_answer();
    return body;
  }
  Error no_answer() const {
    return Error(ErrorCode::kCorrupt, "the answer of " + client_.url() +
                                          " lacks what was asked for: is it a bulkheadd?");
  }

  HttpClient client_;
  std::string name_;
};

std::string line_of(const PerplexitySum& sum, const char* format) {
  char text[80];
  std::snprintf(text, sizeof text, format, sum.perplexity(), sum.error());
  return text;
}

Result<PerplexitySum> measure(Model& model, const Tokens& tokens, const Tokens& bos,
                              const PerplexityOptions& options) {
  const bool show = ::isatty(STDERR_FILENO) != 0;
  const std::size_t size = options.context;
  std::size_t chunks = tokens.size() / size;
  if (options.chunks != 0) chunks = std::min(chunks, options.chunks);
  PerplexitySum sum;
  for (std::size_t i = 0; i < chunks && !interrupted; ++i) {
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(i * size);
    Tokens chunk(begin, begin + static_cast<std::ptrdiff_t>(size));
    if (!bos.empty()) chunk.front() = bos.front();
    const Result<std::vector<double>> logprobs = model.logprobs(chunk);
    if (interrupted) break;
    if (!logprobs.ok()) return logprobs.error();
    sum.add_chunk(*logprobs);
    if (show)
      std::fprintf(stderr, "\r\033[K%zu of %zu chunks: %s", i + 1, chunks,
                   line_of(sum, "%.4f").c_str());
  }
  if (show) std::fprintf(stderr, "\r\033[K");
  return sum;
}

}  // namespace

int run_perplexity(const PerplexityOptions& options) {
  Result<HttpClient> client = make_client(options.connection);
  if (!client.ok()) return fail(client.error());
  const Result<std::string> text = read_file(options.file);
  if (!text.ok()) return fail(text.error());
  watch_interrupts();
  if (const Status ready = wait_until_ready(*client, options.model); !ready.ok())
    return fail(ready.error());
  Model model(*client, options.model);
  const Result<Tokens> bos = model.bos();
  if (!bos.ok()) return fail(bos.error());
  const Result<Tokens> tokens = options.token_ids ? ids_of(*text) : model.tokenize(*text, true);
  if (!tokens.ok()) return fail(tokens.error());
  if (tokens->size() < options.context) {
    return fail(Error(ErrorCode::kInvalidArgument,
                      options.file + " has " + std::to_string(tokens->size()) +
                          " tokens, and a chunk has " + std::to_string(options.context) +
                          ": take a longer text, or a smaller --context"));
  }
  const Result<PerplexitySum> sum = measure(model, *tokens, *bos, options);
  if (!sum.ok()) return fail(sum.error());
  if (sum->count() == 0) return 130;
  if (options.json) {
    put(json{{"perplexity", sum->perplexity()},
             {"standard_error", sum->error()},
             {"mean_negative_log_likelihood", sum->mean()},
             {"tokens", sum->count()},
             {"context", options.context},
             {"whole", !interrupted}}
            .dump() +
        "\n");
  } else {
    put("perplexity " + line_of(*sum, "%.4f +/- %.5f") + " over " + std::to_string(sum->count()) +
        " tokens" + (interrupted ? ", as far as it came" : "") + "\n");
  }
  return interrupted ? 130 : 0;
}

}  // namespace bulkhead::cli
