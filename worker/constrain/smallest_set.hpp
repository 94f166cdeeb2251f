// Finds what follows from rules such as "a node can end if one of its branches can".
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace bulkhead::constrain {

// Returns the smallest set of numbers below `count` that has each number of which `holds(number, in_set)` is true.
// `in_set(other)` tells `holds` whether another number is in the set so far; more members never make `holds` false. A
// number is looked at again only after numbers that it asked for have come in, and waits in a queue for more of them.
// So a long chain takes no square of its length, whatever its order is.
template <typename Holds>
std::vector<bool> smallest_set(std::size_t count, const Holds& holds) {
  std::vector<bool> in(count), queued(count, true);
  std::vector<std::vector<std::uint32_t>> asked_by(count);  // of numbers that are not in
  std::deque<std::uint32_t> queue;
  for (std::size_t i = count; i-- > 0;)
    queue.push_back(static_cast<std::uint32_t>(i));
  while (!queue.empty()) {
    const std::uint32_t at = queue.front();
    queue.pop_front();
    queued[at] = false;
    const auto in_set = [&](std::uint32_t other) -> bool {
      if (!in[other]) asked_by[other].push_back(at);
      return in[other];
    };
    if (!holds(at, in_set)) continue;
    in[at] = true;
    for (const std::uint32_t other : asked_by[at]) {
      if (in[other] || queued[other]) continue;
      queued[other] = true;
      queue.push_back(other);
    }
    std::vector<std::uint32_t>().swap(asked_by[at]);  // frees the memory
  }
  return in;
}

}  // namespace bulkhead::constrain
