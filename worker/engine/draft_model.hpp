// A small model that guesses the tokens of a large one (speculative decoding, Y. Leviathan 2023). Both have the same
// vocabulary. The small model draws with the sequence's own draws: draw n of the request's seed. So at a temperature
// above 0, too, both models choose the same token wherever their probabilities are alike.
//
// The model has a paged KV cache of its own. A sequence's positions there follow the sequence's tokens. What the model
// computed behind a wrong guess is dead, and the next step overwrites it. No result depends on anything here, since the
// engine checks every guess (speculator.hpp).
//
// The model computes while nothing else of the engine is in flight, and the caller waits for it. One thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "worker/engine/executor.hpp"
#include "worker/engine/kv_cache.hpp"

namespace bulkhead::engine {

// A sequence as the draft model knows it.
struct DraftContext {
  PageList pages;
  std::uint32_t computed = 0;  // positions whose keys and values are those of the sequence's tokens
  // Guesses that the model went on with; they lie at positions from `computed` on.
  std::array<TokenId, kMostDrafts> fed{};
  std::uint32_t fed_count = 0;
  std::uint32_t starved_until = 0;  // tokens that the sequence must have before it gets pages again
};

class DraftModel {
 public:
  // The executor must outlive this. Its model must carry no states (ExecutorLimits::states), because wrong guesses are
  // computed again.
  explicit DraftModel(Executor& executor);
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  // Says whether the model can guess for a sequence of so many tokens: they fit its context, and it did not lack pages
  // for the sequence lately.
  bool takes(const DraftContext& context, std::size_t tokens) const;

  struct Wanted {
    DraftContext* context = nullptr;
    std::span<const TokenId> tokens;  // prompt and answer; not empty
    Choice choice;                    // temperature 0: the best token
    std::span<TokenId> guesses;       // where guesses go, nearest first; at most kMostDrafts
    std::uint32_t count = 0;          // how many guesses guess() wrote
  };
  // The time that guess() took. `reading`: for tokens that the model had not seen.
  struct Times {
    std::chrono::nanoseconds reading{0}, guessing{0};
    std::uint32_t rounds = 0;  // steps that guessed
  };
  // Guesses tokens of each sequence, at most `rounds` of each. A sequence whose tokens the model has not read, or for
  // which it lacks pages, gets fewer or none; the model then reads a bounded number of these tokens, so that streams do
  // not wait long. `now` is the clock. An error is the device's: the worker can't go on. After any other failure the
  // model guesses nothing more, and the log says why.
  Result<Times> guess(std::span<Wanted> wanted, std::uint32_t rounds,
                      const std::function<std::chrono::steady_clock::time_point()>& now);

  std::uint64_t read_tokens() const { return read_tokens_; }
  // Device bytes of its weights and its KV cache.
  double bytes() const;
  const PagePool& pool() const { return pool_; }

 private:
  void begin(Wanted& wanted);
  void starve(DraftContext& context, std::size_t tokens) const;
  Result<bool> read(std::span<Wanted> wanted);
  std::uint32_t positions_for(const Wanted& wanted, std::uint32_t rounds) const;
  void choose_members(std::span<Wanted> wanted, std::uint32_t rounds);
  Result<bool> run_round(std::span<Wanted> wanted, std::uint32_t round);
  void clear_step();
  void add_table(const DraftContext& context);
  Result<std::span<const ColumnOutput>> run_step();
  void computed_to(DraftContext& context, std::span<const TokenId> tokens, std::uint32_t end);

  Executor& executor_;
  ExecutorLimits limits_;
  PagePool pool_;
  bool off_ = false;
  std::uint32_t read_columns_;  // of a step that reads
  std::uint64_t read_tokens_ = 0;

  // Scratch of guess().
  std::vector<Column> columns_;
  std::vector<std::span<const PageIndex>> tables_;
  std::vector<WindowPages> windows_;
  std::vector<std::uint32_t> members_;  // indices of wanted sequences that get guesses
  std::vector<std::uint32_t>
      ends_;  // of a step that reads: by index of `wanted`, the position behind its columns
};

}  // namespace bulkhead::engine
