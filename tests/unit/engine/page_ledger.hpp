// A ledger as the vault keeps it: the pages that a successor may adopt, and those to which steps may still write.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/kv_cache.hpp"

namespace bulkhead::test {

struct KeptPages : engine::PageLedger {
  std::vector<std::pair<engine::EnteredPage, Tokens>> in;
  std::set<engine::PageIndex> open;  // a step may write to these
  void entered(const engine::EnteredPage& page) override {
    EXPECT_TRUE(page.before == engine::PrefixIndex::kRoot || knows(page.before))
        << "a page behind one that is not entered";
    in.emplace_back(page, Tokens(page.tokens.begin(), page.tokens.end()));
    open.erase(page.page);
  }
  void left(engine::PageIndex page) override {
    open.insert(page);
    std::erase_if(in, [page](const auto& each) { return each.first.page == page; });
    for (const auto& [other, tokens] : in)
      EXPECT_NE(other.before, page) << "page " << other.page << " left later than what it follows";
  }
  bool knows(engine::PageIndex page) const {
    return std::ranges::any_of(in, [page](const auto& each) { return each.first.page == page; });
  }
  // Returns the pages in the order in which the vault's directory has them: by their numbers, but each after those
  // before it.
  std::vector<engine::EnteredPage> pages() const {
    std::map<engine::PageIndex, engine::EnteredPage> left;
    for (const auto& [page, tokens] : in) {
      engine::EnteredPage& each = left[page.page] = page;
      each.tokens = tokens;
    }
    std::vector<engine::EnteredPage> kept;
    while (!left.empty()) {
      std::vector<engine::EnteredPage> chain;
      for (auto at = left.begin(); at != left.end(); at = left.find(chain.back().before)) {
        chain.push_back(at->second);
        left.erase(at);
      }
      kept.insert(kept.end(), chain.rbegin(), chain.rend());
    }
    return kept;
  }
};

}  // namespace bulkhead::test
