#include "worker/model/merge_list.hpp"

#include <string>

namespace bulkhead::model {
namespace {

constexpr std::size_t kMostMerges = 1U << 22;  // with all their parts, this is far below kNoSymbol
constexpr std::size_t kMostMergeBytes = 32'768;

}  // namespace

std::uint32_t MergeList::symbol(std::string_view text) {
  if (const auto known = by_text_.find(text)) return *known;
  by_text_.insert(vocabulary_.arena.add(text), symbols_);
  return symbols_++;
}

Status MergeList::read(const GgufFile& file, std::string_view kind) {
  const auto corrupt = [&file](const std::string& what) {
    return Error(ErrorCode::kCorrupt,
                 file.name() + ": " + what + "; the file is damaged or was converted wrongly");
  };
  BULKHEAD_TRY(const auto merges, file.get_strings("tokenizer.ggml.merges"));
  if (!merges)
    return corrupt("metadata key tokenizer.ggml.merges is missing, which a \"" + std::string(kind) +
                   "\" tokenizer needs");
  if (merges->size() > kMostMerges)
    return corrupt("tokenizer.ggml.merges has " + std::to_string(merges->size()) + " entries");
  merges_ = PairMap(merges->size());
  ranks_ = static_cast<std::uint32_t>(merges->size());
  std::string both;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const std::string_view merge = (*merges)[rank];
    // The search begins at 1: in vocabularies that don't write bytes as characters, the left part may itself be a
    // space.
    const std::size_t border = merge.find(' ', 1);
    if (border == std::string_view::npos || border + 1 == merge.size() ||
        merge.size() > kMostMergeBytes)
      return corrupt("merge " + std::to_string(rank) + " is not two parts with a space between");
    const std::string_view left = merge.substr(0, border);
    const std::string_view right = merge.substr(border + 1);
    both.assign(left).append(right);
    const std::uint32_t left_symbol = symbol(left);
    const std::uint32_t right_symbol = symbol(right);
    merges_.insert(left_symbol, right_symbol, {rank, symbol(both)});
  }
  return {};
}

void MergeList::merge(MergeScratch& scratch) const {
  const MergeChain& chain = scratch.chain;
  merge_all(scratch, ranks_,
            [&](std::uint32_t left, std::uint32_t right) -> std::optional<MergeRule> {
              const auto merge = merges_.find(chain.id(left), chain.id(right));
              if (!merge) return std::nullopt;
              return MergeRule{merge->rank, merge->product};
            });
}

}  // namespace bulkhead::model
