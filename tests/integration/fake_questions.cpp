#include "tests/integration/fake_questions.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace bulkhead::test {

ipc::FromWorker tokenized(const ipc::Tokenize& tokenize) {
  if (tokenize.text.starts_with("too large")) {
    return ipc::Failed{tokenize.request, ipc::FailureCode::kResourceExhausted,
                       "the answer is larger than the channel takes", ""};
  }
  ipc::Tokenized answer{tokenize.request, {}, tokenize.texts};
  for (const char c : tokenize.text) {
    answer.tokens.push_back(static_cast<unsigned char>(c));
    const std::string byte(1, c);
    if (tokenize.texts == ipc::TokenTexts::kPieces) answer.texts.push_back({byte});
    if (tokenize.texts == ipc::TokenTexts::kVocabulary) answer.texts.push_back({"<" + byte + ">"});
  }
  return answer;
}

ipc::FromWorker detokenized(const ipc::Detokenize& detokenize) {
  ipc::Detokenized answer{detokenize.request, ""};
  for (const ipc::TokenId id : detokenize.tokens)
    answer.text += static_cast<char>(id);
  return answer;
}

ipc::FromWorker embedded(const ipc::Embed& embed) {
  const auto* text = std::get_if<std::string>(&embed.input);
  if (text != nullptr && text->find("refused") != std::string::npos)
    return ipc::Failed{embed.request, ipc::FailureCode::kContextExceeded, "too long", "input"};
  const std::size_t size =
      text != nullptr ? text->size() : std::get<std::vector<ipc::TokenId>>(embed.input).size();
  return ipc::Embedded{
      embed.request, static_cast<std::uint32_t>(size), {3, 4, static_cast<float>(size)}};
}

ipc::FromWorker ranked(const ipc::Rank& rank) {
  if (rank.document.find("refused") != std::string::npos)
    return ipc::Failed{rank.request, ipc::FailureCode::kContextExceeded, "too long", "documents"};
  const auto count = std::ranges::count(rank.document, rank.query.front());
  return ipc::Ranked{rank.request,
                     static_cast<std::uint32_t>(rank.query.size() + rank.document.size()),
                     static_cast<float>(count) / 4};
}

}  // namespace bulkhead::test
