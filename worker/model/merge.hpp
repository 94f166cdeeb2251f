// The core of both tokenizers: it merges the best adjacent pair in a chain of symbols again and again, until no rule
// fits. The time is linear in the word's length whatever the word contains: at most n - 1 merges happen, each makes
// at most two new pairs, and each pair waits once in a queue that gives the best in constant time (merge_queue.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/model/merge_queue.hpp"

namespace bulkhead::model {

constexpr std::uint32_t kNoSymbol = (1U << 30) - 1;  // ids are below

struct MergeRule {
  std::uint32_t rank;     // lower ranks merge first; equal ones from left to right
  std::uint32_t product;  // the id of the merged symbol
};

// Symbols side by side, identified by the place of their first byte. They take four bytes per byte of the word, and
// both neighbours of a short symbol are in the same cache line:
//
//   a symbol of one byte  | id           |
//   a longer one          | id + kLonger | kInner + length | ... | kInner + length |
//
// (In a symbol of two bytes, the second slot is both the first and the last kInner.) The slots between keep kInner
// and mean nothing.
class MergeChain {
 public:
  static constexpr std::size_t kMostBytes = 1U << 29;

  void clear(std::size_t bytes) {
    slots_.clear();
    slots_.reserve(bytes);
  }
  void add(std::uint32_t id, std::uint32_t length) {
    if (length == 1) {
      slots_.push_back(id);
      return;
    }
    slots_.push_back(id | kLonger);
    slots_.resize(slots_.size() + length - 1, kInner | length);
  }

  // Returns the place after the last byte, which is also next() of the last symbol.
  std::uint32_t size() const { return static_cast<std::uint32_t>(slots_.size()); }
  bool starts(std::uint32_t at) const { return (slots_[at] & kInner) == 0; }
  std::uint32_t id(std::uint32_t at) const { return slots_[at] & kValue; }
  std::uint32_t next(std::uint32_t at) const {
    return (slots_[at] & kLonger) == 0 ? at + 1 : at + (slots_[at + 1] & kValue);
  }
  // The symbol must not be the first one.
  std::uint32_t previous(std::uint32_t at) const {
    const std::uint32_t before = slots_[at - 1];
    return (before & kInner) == 0 ? at - 1 : at - (before & kValue);
  }
  void join(std::uint32_t left, std::uint32_t right, std::uint32_t product) {
    const std::uint32_t end = next(right);
    slots_[right] = kInner;
    slots_[left] = product | kLonger;
    slots_[left + 1] = slots_[end - 1] = kInner | (end - left);
  }
  void prefetch(std::uint32_t at) const { __builtin_prefetch(slots_.data() + at); }

 private:
  static constexpr std::uint32_t kInner = 1U << 31;
  static constexpr std::uint32_t kLonger = 1U << 30;
  static constexpr std::uint32_t kValue = kLonger - 1;
  std::vector<std::uint32_t> slots_;
};

// Working memory that is reused from word to word.
struct MergeScratch {
  MergeChain chain;
  MergeQueue queue;
};

// rule(left, right) returns std::optional<MergeRule> for two neighbours of the chain, with ranks below `ranks`. It
// must always return the same for the same two symbols.
template <typename Rule>
void merge_all(MergeScratch& scratch, std::uint32_t ranks, Rule&& rule) {
  MergeChain& chain = scratch.chain;
  MergeQueue& queue = scratch.queue;
  const std::uint32_t end = chain.size();
  if (end == 0) return;
  queue.start(ranks, end);
  const auto consider = [&](std::uint32_t left, std::uint32_t right) {
    if (const std::optional<MergeRule> found = rule(left, right)) queue.push(found->rank, left);
  };
  for (std::uint32_t left = 0, right = chain.next(0); right < end;
       left = right, right = chain.next(left))
    consider(left, right);

  while (const auto best = queue.pop()) {
    chain.prefetch(queue.upcoming());
    const std::uint32_t left = best->at;
    if (!chain.starts(left)) continue;
    const std::uint32_t right = chain.next(left);
    if (right == end) continue;
    // Outdated, unless the pair that is there now has the rank that was queued.
    const std::optional<MergeRule> found = rule(left, right);
    if (!found || found->rank != best->rank) continue;
    chain.join(left, right, found->product);
    if (left > 0) consider(chain.previous(left), left);
    if (const std::uint32_t next = chain.next(left); next < end) consider(left, next);
  }
}

}  // namespace bulkhead::model
