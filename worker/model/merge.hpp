// The heart of both tokenizers: a chain of symbols in which the best adjacent pair is merged again and again. A heap holds
// the candidates, so a word of n symbols takes O(n log n) whatever is in it: at most n - 1 merges happen, each adds at
// most two candidates, and each candidate is popped once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace bulkhead::model {

constexpr std::uint32_t kNoSymbol = ~0U;

struct MergeSymbol {
  std::uint32_t id = kNoSymbol;
  std::uint32_t start = 0;   // of its bytes in the text
  std::uint32_t length = 0;  // 0: swallowed by its left neighbour
  std::uint32_t prev = kNoSymbol;
  std::uint32_t next = kNoSymbol;
};

struct MergeRule {
  std::uint32_t priority;  // lower merges first; equal ones from left to right
  std::uint32_t product;   // the id of the merged symbol
};

// Working memory, reused from word to word.
struct MergeScratch {
  struct Candidate {
    std::uint64_t order;  // priority, then position of the left symbol
    std::uint32_t
        length;  // of both symbols together when it was found: another length now means it is out of date
    std::uint32_t product;
    bool operator>(const Candidate& other) const { return order > other.order; }
  };
  std::vector<MergeSymbol> symbols;
  std::vector<Candidate> heap;
  std::uint64_t candidates = 0;  // ever looked at, for tests of the bound above

  void clear() { symbols.clear(); }
  void add(std::uint32_t id, std::uint32_t start, std::uint32_t length) {
    const auto index = static_cast<std::uint32_t>(symbols.size());
    if (index > 0) symbols.back().next = index;
    symbols.push_back({id, start, length, index == 0 ? kNoSymbol : index - 1, kNoSymbol});
  }
};

// rule(left, right) -> std::optional<MergeRule>. Afterwards the symbols left are those on the chain from symbols[0].
template <typename Rule>
void merge_all(MergeScratch& scratch, Rule&& rule) {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  const auto consider = [&](std::uint32_t left) -> bool {
    const MergeSymbol& a = symbols[left];
    if (a.next == kNoSymbol) return false;
    const MergeSymbol& b = symbols[a.next];
    const std::optional<MergeRule> found = rule(a, b);
    ++scratch.candidates;
    if (!found) return false;
    heap.push_back(
        {std::uint64_t{found->priority} << 32 | left, a.length + b.length, found->product});
    return true;
  };
  for (std::uint32_t i = 0; i + 1 < symbols.size(); ++i)
    consider(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](std::uint32_t left) {
    if (consider(left)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };

  while (!heap.empty()) {
    const MergeScratch::Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto left = static_cast<std::uint32_t>(best.order);
    MergeSymbol& a = symbols[left];
    if (a.length == 0 || a.next == kNoSymbol) continue;
    MergeSymbol& b = symbols[a.next];
    // Symbols only grow to the right and swallow whole neighbours: equal length means the same pair.
    if (a.length + b.length != best.length) continue;
    a.id = best.product;
    a.length = best.length;
    b.length = 0;
    a.next = b.next;
    if (a.next != kNoSymbol) symbols[a.next].prev = left;
    if (a.prev != kNoSymbol) push(a.prev);
    push(left);
  }
}

}  // namespace bulkhead::model
