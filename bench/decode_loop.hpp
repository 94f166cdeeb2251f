// Takes turns like the engine, but without an engine, for bench-decode. The scheduler plans steps, the executor has
// as many in flight as it allows, and the device passes tokens from step to step. Use a loop from one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/base/error.hpp"
#include "config/config.hpp"
#include "worker/engine/executor.hpp"
#include "worker/engine/page_guard.hpp"
#include "worker/engine/scheduler.hpp"
#include "worker/engine/speculator.hpp"

namespace bulkhead::bench {

// What the loop does with finished pages. kForgotten: it frees them. kCached: it puts them into the prefix cache.
// kChecked: it also computes checksums of the pages and of the weights.
enum class Pages : std::uint8_t { kForgotten, kCached, kChecked };

class DecodeLoop {
 public:
  // The loop has room for `streams` sequences. The executor must outlive the loop.
  DecodeLoop(engine::Executor& executor, std::uint32_t streams,
             const config::EngineSettings& engine, engine::Speculation speculation, Pages pages);
  ~DecodeLoop();

  // Queues a sequence with a made-up prompt of `prompt` tokens, which may grow to `most`.
  void add(std::uint32_t stream, std::uint32_t prompt, std::uint32_t most);
  // From now on the stream guesses its recorded tokens. Each guess is right with probability `accuracy`.
  void guess(std::size_t stream, std::vector<engine::TokenId> recorded, double accuracy);
  // Submits all steps that can be submitted, and ends one. Returns how many tokens that step gave.
  Result<std::uint32_t> turn();
  // Ends all steps in flight and all checks. Returns an error if a page is damaged.
  Status end_all();

  const std::vector<std::unique_ptr<engine::DraftedSequence>>& sequences() const {
    return sequences_;
  }
  const engine::Speculator::Figures& drafts() const { return speculator_.figures(); }

 private:
  Result<std::uint32_t> end_one();

  engine::Executor& executor_;
  engine::Speculator speculator_;
  engine::Scheduler scheduler_;
  std::unique_ptr<engine::PageGuard> guard_;
  std::uint64_t submitted_ = 0, ended_ = 0;
  std::chrono::steady_clock::time_point ended_at_ = std::chrono::steady_clock::now();  // when a step ended
  std::vector<std::unique_ptr<engine::DraftedSequence>> sequences_;
};

}  // namespace bulkhead::bench
