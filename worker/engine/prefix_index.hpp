// Finds pages by the tokens that they hold: page after page, it matches the beginning of a new prompt with pages that
// earlier sequences filled.
//
// A page is identified by its own tokens and by the page before it, which is identified in the same
// way, back to position 0. So a page is found only if every token up to its end is equal. The index
// compares the tokens and does not rely on their hash: no collision can give a wrong page.
//
//     root --[tokens 0..15]--> page 7 --[tokens 16..31]--> page 2
//                                     --[other 16..31]---> page 9
//
// A page's number stands for all tokens before it, so a page may be erased only when no page in the
// index follows it (follower_count() is 0).
//
// The index does not record who uses a page. It allocates nothing after construction. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

class PrefixIndex {
 public:
  static constexpr PageIndex kRoot = 0xFFFFFFFF;  // the page "before" the first page

  // Uses 4 * page_tokens + 24 bytes of host memory per page, and up to 8 for its bucket.
  PrefixIndex(std::uint32_t pages, std::uint32_t page_tokens);

  // Returns the page that follows `before` and has exactly these page_tokens tokens.
  std::optional<PageIndex> find(PageIndex before, std::span<const TokenId> tokens) const;
  // `page` must not be in the index, `before` must be in it or be kRoot, and find() must find nothing for `before`
  // and these tokens.
  void insert(PageIndex page, PageIndex before, std::span<const TokenId> tokens);
  // `page` must be in the index, and no page may follow it.
  void erase(PageIndex page);

  bool contains(PageIndex page) const { return entries_[page].held; }
  std::uint32_t follower_count(PageIndex page) const { return entries_[page].followers; }
  PageIndex before(PageIndex page) const { return entries_[page].before; }
  std::span<const TokenId> tokens(PageIndex page) const {
    return {tokens_.data() + std::size_t{page} * page_tokens_, page_tokens_};
  }
  std::uint32_t size() const { return size_; }

 private:
  struct Entry {
    std::uint64_t hash = 0;
    PageIndex before = kRoot;
    PageIndex next = kRoot;  // the next page in its bucket
    std::uint32_t followers = 0;
    bool held = false;
  };
  std::uint64_t hash_of(PageIndex before, std::span<const TokenId> tokens) const;
  PageIndex& bucket(std::uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }

  std::uint32_t page_tokens_;
  // A different seed in every process, so that nobody can prepare prompts that fall into one bucket. (Such prompts
  // would only cost time; no result depends on the seed.)
  std::uint64_t seed_;
  std::vector<Entry> entries_;      // by page
  std::vector<TokenId> tokens_;     // page after page
  std::vector<PageIndex> buckets_;  // a power of two of them; each a chain through Entry::next
  std::uint32_t size_ = 0;
};

}  // namespace bulkhead::engine
