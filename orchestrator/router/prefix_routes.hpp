// Remembers which worker was given which beginning of a prompt, because that worker may have the beginning in its
// prefix cache.
//
// The daemon has no tokens, so it divides the prompt's bytes into blocks. Each block's hash also covers all blocks
// before it. If two different texts had equal hashes, a request would go to a worker that does not know its
// beginning; it would get the same tokens there. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ipc/messages.hpp"

namespace bulkhead::orchestrator {

// Returns a hash for each whole block of the prompt, at most kMostBlocks; empty for work without a prompt.
std::vector<std::uint64_t> prefix_blocks(const ipc::Work& work);

class PrefixRoutes {
 public:
  static constexpr std::size_t kBlockBytes = 512, kMostBlocks = 256, kMostKept = 1 << 15;

  // Returns the name of the worker that was last given the longest known beginning of these blocks; empty if there is
  // none.
  std::string holder_of(std::size_t model, std::span<const std::uint64_t> blocks) const;
  // Remembers that the worker is given a prompt with these blocks. A full table forgets its oldest entries.
  void note(std::size_t model, std::span<const std::uint64_t> blocks, std::string_view worker);

 private:
  struct Kept {
    std::string worker;
    std::list<std::uint64_t>::iterator age;
  };
  static std::uint64_t key_of(std::size_t model, std::uint64_t block);

  std::unordered_map<std::uint64_t, Kept> kept_;
  std::list<std::uint64_t> ages_;  // keys of kept_, the newest at the end
};

}  // namespace bulkhead::orchestrator
