#include "worker/model/shared_vocabulary.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/clean_text.hpp"
#include "worker/model/vocabulary.hpp"

namespace bulkhead::model {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr std::size_t kMostShown = 60;  // bytes of a token's text in a message

using Texts = std::vector<std::string_view>;

Error different(std::string what) {
  return Error(ErrorCode::kUnsupported, std::move(what));
}

std::string in_quotes(std::string_view text) {
  return "\"" + cleaned(text.substr(0, kMostShown)) + "\"";
}

Result<Texts> token_texts(const GgufFile& file) {
  BULKHEAD_TRY(auto texts, file.get_strings(kTokens));
  if (!texts.has_value()) return different(file.name() + " has no " + kTokens);
  return *std::move(texts);
}

// Converters give padding the type "unused"; older ones of llama.cpp took "user-defined". No plain text becomes a
// control token, such as the mark of an image in the larger models of Gemma 3.
bool is_padding(std::string_view text, std::int64_t type) {
  return type == static_cast<std::int64_t>(TokenType::kUnused) ||
         type == static_cast<std::int64_t>(TokenType::kControl) || text.empty() ||
         text.starts_with("[PAD") || text.starts_with("<unused");
}

// Checks the entries that `texts`, those of `longer`, has from `begin` on.
Status check_padding(const GgufFile& longer, const Texts& texts, std::size_t begin) {
  BULKHEAD_TRY(const auto types, longer.get_ints("tokenizer.ggml.token_type"));
  const bool typed = types.has_value() && types->size() == texts.size();
  for (std::size_t i = begin; i < texts.size(); ++i) {
    const auto normal = static_cast<std::int64_t>(TokenType::kNormal);
    if (is_padding(texts[i], typed ? (*types)[i] : normal)) continue;
    return different(longer.name() + " has the further token " + std::to_string(i) + ", " +
                     in_quotes(texts[i]) + ", which is no padding");
  }
  return {};
}

Status check_special_tokens(const GgufFile& model, const GgufFile& draft) {
  for (const char* name : {"bos", "eos", "eot", "eom"}) {
    const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
    BULKHEAD_TRY(const auto here, named_token(model, key));
    BULKHEAD_TRY(const auto there, named_token(draft, key));
    if (here.has_value() && there.has_value() && *here != *there)
      return different("its " + key + " is " + std::to_string(*there) + " and not " +
                       std::to_string(*here));
  }
  return {};
}

}  // namespace

Status check_shared_vocabulary(const GgufFile& model, const GgufFile& draft) {
  BULKHEAD_TRY(const Texts tokens, token_texts(model));
  BULKHEAD_TRY(const Texts others, token_texts(draft));
  const auto [here, there] = std::ranges::mismatch(tokens, others);
  const std::size_t shorter = std::min(tokens.size(), others.size());
  const std::size_t longer = std::max(tokens.size(), others.size());
  if (here != tokens.end() && there != others.end()) {
    return different("its token " + std::to_string(here - tokens.begin()) + " is " +
                     in_quotes(*there) + " and not " + in_quotes(*here));
  }
  if (shorter == longer) return {};
  if (longer - shorter > kMostPadding) {
    return different("it has " + std::to_string(others.size()) + " tokens and not " +
                     std::to_string(tokens.size()) + ", and at most " +
                     std::to_string(kMostPadding) + " may be padding");
  }
  const bool model_longer = tokens.size() == longer;
  BULKHEAD_RETURN_IF_ERROR(
      check_padding(model_longer ? model : draft, model_longer ? tokens : others, shorter));
  return check_special_tokens(model, draft);
}

}  // namespace bulkhead::model
