// Gemma 4's BPE: pairs merge by rank, as in byte-level BPE, but the symbols are characters, and lines are not cut
// into words. Spaces are written as U+2581; text that no token covers becomes byte tokens.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "worker/model/merge_list.hpp"
#include "worker/model/space_mark.hpp"
#include "worker/model/unicode.hpp"
#include "worker/model/vocabulary.hpp"

namespace bulkhead::model {
namespace {

class GemmaTokenizer final : public VocabularyTokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> make(const GgufFile& file) {
    VocabularyDefaults defaults;
    // Gemma writes nonsense without a BOS, and some files say wrongly that none is added.
    BULKHEAD_TRY(const auto bos, named_token(file, defaults.bos_key));
    defaults.always_bos = bos.has_value();
    BULKHEAD_TRY(auto vocabulary, read_vocabulary(file, defaults));
    auto tokenizer = std::unique_ptr<GemmaTokenizer>(new GemmaTokenizer(std::move(vocabulary)));
    tokenizer->index();
    BULKHEAD_RETURN_IF_ERROR(tokenizer->merges_.read(file, "gemma4"));
    return std::unique_ptr<Tokenizer>(std::move(tokenizer));
  }

 private:
  using VocabularyTokenizer::VocabularyTokenizer;

  void index() {
    merges_.reserve(vocabulary_.size());
    pieces_.resize(vocabulary_.size());
    for (TokenId token = 0; token < vocabulary_.size(); ++token) {
      const std::string_view text = vocabulary_.texts[token];
      const TokenType type = vocabulary_.types[token];
      const auto byte = byte_token_value(text);
      // Files that call the vocabulary byte-level BPE say that these tokens are normal.
      if (byte && (type == TokenType::kByte || type == TokenType::kNormal)) {
        const char one = static_cast<char>(*byte);
        byte_tokens_[*byte] = token;
        pieces_[token] = vocabulary_.arena.add({&one, 1});
        continue;
      }
      if (type == TokenType::kControl || type == TokenType::kUnknown) continue;
      pieces_[token] =
          type == TokenType::kUserDefined ? text : vocabulary_.arena.add(without_marks(text));
      if (vocabulary_.from_text(token)) merges_.add_token(text, token);
    }
  }

  void encode_text(std::string_view text, bool /*first*/,
                   std::vector<TokenId>& out) const override {
    MergeScratch scratch;
    while (!text.empty()) {
      const bool breaks = text.front() == '\n';
      std::size_t end = breaks ? text.find_first_not_of('\n') : text.find('\n');
      // A mark takes three bytes instead of a space's one.
      end = std::min({end, text.size(), MergeChain::kMostBytes / 3});
      encode_line(with_marks(text.substr(0, end)), breaks, scratch, out);
      text.remove_prefix(end);
    }
  }

  // Encodes a line, or line breaks, whose spaces have been replaced by marks.
  void encode_line(std::string_view line, bool breaks, MergeScratch& scratch,
                   std::vector<TokenId>& out) const {
    if (const auto whole = breaks ? merges_.find(line) : std::nullopt;
        whole && *whole < vocabulary_.size()) {
      out.push_back(*whole);
      return;
    }
    MergeChain& chain = scratch.chain;
    chain.clear(line.size());
    for (std::size_t at = 0; at < line.size();) {
      const std::uint32_t bytes = decode_char(line.substr(at)).bytes;
      chain.add(merges_.find(line.substr(at, bytes)).value_or(kNoSymbol), bytes);
      at += bytes;
    }
    merges_.merge(scratch);
    for (std::uint32_t at = 0, next = 0; at < chain.size(); at = next) {
      next = chain.next(at);
      if (chain.id(at) < vocabulary_.size())
        out.push_back(chain.id(at));
      else
        add_bytes(line.substr(at, next - at), out);
    }
  }

  void add_bytes(std::string_view text, std::vector<TokenId>& out) const {
    for (const char c : without_marks(text)) {
      const auto& byte = byte_tokens_[static_cast<unsigned char>(c)];
      if (byte || vocabulary_.unknown) out.push_back(byte ? *byte : *vocabulary_.unknown);
    }
  }

  MergeList merges_{vocabulary_};
  std::array<std::optional<TokenId>, 256> byte_tokens_{};
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_gemma_tokenizer(const GgufFile& file) {
  return GemmaTokenizer::make(file);
}

}  // namespace bulkhead::model
