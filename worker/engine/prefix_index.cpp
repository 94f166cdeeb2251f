#include "worker/engine/prefix_index.hpp"

#include <algorithm>
#include <bit>

#include "config/base/random.hpp"
#include "config/base/splitmix.hpp"

namespace bulkhead::engine {

PrefixIndex::PrefixIndex(std::uint32_t pages, std::uint32_t page_tokens)
    : page_tokens_(page_tokens),
      seed_(random_u64()),
      entries_(pages),
      tokens_(std::size_t{pages} * page_tokens),
      buckets_(std::bit_ceil(std::max(1U, pages)), kRoot) {}

std::uint64_t PrefixIndex::hash_of(PageIndex before, std::span<const TokenId> tokens) const {
  std::uint64_t hash = splitmix(seed_ + before);
  for (const TokenId token : tokens)
    hash = splitmix(hash + token + kSplitmixStep);
  return hash;
}

std::optional<PageIndex> PrefixIndex::find(PageIndex before,
                                           std::span<const TokenId> tokens) const {
  const std::uint64_t hash = hash_of(before, tokens);
  PageIndex page = buckets_[hash & (buckets_.size() - 1)];
  for (; page != kRoot; page = entries_[page].next) {
    const Entry& entry = entries_[page];
    if (entry.hash == hash && entry.before == before &&
        std::ranges::equal(this->tokens(page), tokens))
      return page;
  }
  return std::nullopt;
}

void PrefixIndex::insert(PageIndex page, PageIndex before, std::span<const TokenId> tokens) {
  Entry& entry = entries_[page];
  entry.hash = hash_of(before, tokens);
  entry.before = before;
  entry.followers = 0;
  entry.held = true;
  PageIndex& first = bucket(entry.hash);
  entry.next = first;
  first = page;
  std::ranges::copy(tokens, tokens_.begin() + std::ptrdiff_t{page} * page_tokens_);
  if (before != kRoot) ++entries_[before].followers;
  ++size_;
}

void PrefixIndex::erase(PageIndex page) {
  Entry& entry = entries_[page];
  PageIndex* link = &bucket(entry.hash);
  while (*link != page)
    link = &entries_[*link].next;
  *link = entry.next;
  if (entry.before != kRoot) --entries_[entry.before].followers;
  entry.held = false;
  --size_;
}

}  // namespace bulkhead::engine
