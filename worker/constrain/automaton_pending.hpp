// The frames that a step has reached so far. Only automaton*.cpp includes this.
#pragma once

#include <map>
#include <vector>

#include "worker/constrain/automaton.hpp"

namespace bulkhead::constrain {

// Each frame occurs once, with everything that it may return to. A frame that gets more to return to is expanded
// again.
struct Automaton::Pending {
  std::map<Frame, ConfigId> parents;
  std::vector<Frame> work;   // still to be expanded
  std::vector<Frame> ready;  // frames that take a byte
  // Items of all sets that were united, including remembered unions. A step is bounded by this number, which must not
  // depend on earlier steps.
  std::size_t united = 0;
  std::size_t merged = 0;  // how often frames were reached, with repetitions

  std::size_t cost() const { return 1 + merged + united; }

  void add(const Frame& frame, ConfigId to, Automaton& automaton) {
    if (merge(frame, to, automaton)) work.push_back(frame);
  }
  void take(const Frame& frame, ConfigId to, Automaton& automaton) {
    merge(frame, to, automaton);
    ready.push_back(frame);
  }

 private:
  bool merge(const Frame& frame, ConfigId to, Automaton& automaton) {
    ++merged;
    const auto [entry, fresh] = parents.try_emplace(frame, to);
    if (fresh) return true;
    if (entry->second == to) return false;
    united += automaton.items(entry->second).size() + automaton.items(to).size();
    const ConfigId both = automaton.unite(entry->second, to);
    const bool changed = both != entry->second;
    entry->second = both;
    return changed;
  }
};

}  // namespace bulkhead::constrain
