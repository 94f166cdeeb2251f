#include "worker/engine/prefix_index.hpp"

#include <algorithm>
#include <bit>
#include <chrono>

namespace bulkhead::engine {
namespace {

std::uint64_t mix(std::uint64_t value) {  // splitmix64's finaliser
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// Differs in every process, so that nobody can prepare prompts that fall into one bucket. (It would
// cost time only, and no result depends on it.)
std::uint64_t process_seed() {
  static const char anywhere = 0;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return mix(static_cast<std::uint64_t>(now) ^ reinterpret_cast<std::uintptr_t>(&anywhere));
}

}  // namespace

PrefixIndex::PrefixIndex(std::uint32_t pages, std::uint32_t page_tokens)
    : page_tokens_(page_tokens),
      seed_(process_seed()),
      entries_(pages),
      tokens_(std::size_t{pages} * page_tokens),
      buckets_(std::bit_ceil(std::max(1U, pages)), kRoot) {}

std::uint64_t PrefixIndex::hash_of(PageIndex before, std::span<const TokenId> tokens) const {
  std::uint64_t hash = mix(seed_ + before);
  for (const TokenId token : tokens)
    hash = mix(hash + token + 0x9E3779B97F4A7C15);
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
