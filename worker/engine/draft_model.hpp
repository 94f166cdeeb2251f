// A small model that guesses the tokens of a large one (speculative decoding, Y. Leviathan 2023). Both models have
// the same vocabulary, but each may have further tokens at its end. The small model guesses for a sequence as long as
// it has all of the sequence's tokens, and a guess that the large model does not have ends the guesses. The small
// model uses the sequence's own draws: draw n of the request's seed. So even at a temperature above 0, both models
// choose the same token wherever their probabilities are similar.
//
// The model has its own paged KV cache, where a sequence's positions follow the sequence's tokens. What the model
// computed after a wrong guess is dead, and the next step overwrites it. No result depends on anything here, because
// the engine checks every guess (speculator.hpp).
//
// If layers carry states from position to position, a sequence has two slots: one for the states after its own tokens,
// and one for those after guesses. The model continues from the first one. So it computes right guesses again, in the
// step that reads the token after these guesses. The step takes hardly longer, because the model is small. The model
// reads every prompt whole, because the cache can find pages, but no states.
//
// In place of a small model there may be a block behind the large model's layers (multi-token prediction,
// model/graph_draft.cpp). For a token and the hidden state from which the large model chose it, the block computes the
// logits of the next token. It goes on from its own hidden states for further guesses, and reads right guesses again
// with the large model's. It gets the hidden states of generated tokens only. So it sees the answer and not the prompt,
// and if it lacks the hidden state of a token, it sees only what follows that token. It numbers positions from the
// first token that it sees, because rotations depend on the distance between positions alone.
//
// The model computes only while no step of the engine is in flight, and the caller waits for it. One thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "config/base/error.hpp"
#include "worker/engine/executor.hpp"
#include "worker/engine/kv_cache.hpp"

namespace bulkhead::engine {

// The slots that a draft model has for states, in pairs. Destroying a pair returns it.
class StatePairs {
 public:
  explicit StatePairs(std::uint32_t slots) {
    for (std::uint32_t pair = slots / 2; pair > 0; --pair)
      free_.push_back(pair - 1);
  }

  class Pair {
   public:
    Pair() = default;
    Pair(Pair&& other) noexcept
        : pairs_(std::exchange(other.pairs_, nullptr)), index_(other.index_) {}
    Pair& operator=(Pair&& other) noexcept {
      std::swap(pairs_, other.pairs_);
      std::swap(index_, other.index_);
      return *this;
    }
    ~Pair() {
      if (pairs_ != nullptr) pairs_->free_.push_back(index_);
    }
    explicit operator bool() const { return pairs_ != nullptr; }
    StateSlot kept() const { return 2 * index_; }       // after the sequence's own tokens
    StateSlot ahead() const { return 2 * index_ + 1; }  // after guesses

   private:
    friend class StatePairs;
    Pair(StatePairs* pairs, std::uint32_t index) : pairs_(pairs), index_(index) {}
    StatePairs* pairs_ = nullptr;
    std::uint32_t index_ = 0;
  };
  // Returns an empty pair if none is free.
  Pair lend() {
    if (free_.empty()) return {};
    const std::uint32_t index = free_.back();
    free_.pop_back();
    return {this, index};
  }

 private:
  std::vector<std::uint32_t> free_;
};

// The hidden states from which the newest tokens of a sequence were chosen, for a block that drafts tokens. A block
// that is not asked for long forgets older tokens.
class HiddenStates {
 public:
  static constexpr std::uint32_t kMost = 32;

  // Adds the state of the token at this index. If it does not follow the newest one, the others are forgotten.
  void add(std::uint32_t token, std::span<const float> state);
  // Returns the state of a token from begin() to end().
  std::span<const float> of(std::uint32_t token) const {
    return std::span(rows_).subspan(std::size_t{token % kMost} * width_, width_);
  }
  std::uint32_t begin() const { return begin_; }
  std::uint32_t end() const { return end_; }

 private:
  std::vector<float> rows_;  // [token % kMost]
  std::size_t width_ = 0;
  std::uint32_t begin_ = 0, end_ = 0;
};

// What the draft model records about a sequence.
struct DraftContext {
  PageList pages;
  StatePairs::Pair states;     // empty if no layer carries states
  std::uint32_t computed = 0;  // positions whose keys and values match the sequence's tokens
  // The guesses that the model itself continued from; they are at the positions from `computed` on.
  std::array<TokenId, kMostDrafts> fed{};
  std::uint32_t fed_count = 0;
  std::uint32_t known = 0;  // how many of the first tokens of the sequence the model has
  std::uint32_t starved_until =
      0;  // the number of tokens that the sequence must have before it gets pages again
  // For a block that drafts tokens.
  HiddenStates hidden;
  std::uint32_t first = 0;    // the first token that it sees
  std::vector<float> latest;  // the hidden state of its latest guess
};

class DraftModel {
 public:
  // The executor must outlive this. `vocabulary` is the number of tokens of the model for which it guesses.
  DraftModel(Executor& executor, std::uint32_t vocabulary);
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  // Whether the model is a block that drafts tokens. If so, it guesses after tokens that add_hidden() got.
  bool takes_hidden() const { return limits_.takes_hidden; }
  // Whether it guesses for this many sequences at once.
  bool serves(std::size_t sequences) const { return !off_ && sequences <= limits_.max_sequences; }
  // Adds the hidden state from which the last of these tokens was chosen.
  void add_hidden(DraftContext& context, std::span<const TokenId> tokens,
                  std::span<const float> state) const;
  // Returns the part of a sequence's tokens that the model sees; the functions below take this part.
  std::span<const TokenId> seen(const DraftContext& context,
                                std::span<const TokenId> tokens) const {
    return tokens.subspan(context.first);
  }

  // Returns whether the model can guess for the sequence of these tokens: it has them all, they fit its context, and
  // it did not lack pages for the sequence recently. Without all tokens it never can again, and the sequence's pages
  // are free.
  bool takes(DraftContext& context, std::span<const TokenId> tokens) const;

  struct Wanted {
    DraftContext* context = nullptr;
    std::span<const TokenId> tokens;  // prompt and answer, as far as seen(); not empty
    Choice choice;                    // at temperature 0: the best token
    std::span<TokenId> guesses;       // gets the guesses, nearest first; at most kMostDrafts
    std::uint32_t count = 0;          // how many guesses guess() wrote
  };
  // The time that guess() took. `reading` is the part for tokens that the model had not seen.
  struct Times {
    std::chrono::nanoseconds reading{0}, guessing{0};
    std::uint32_t rounds = 0;  // steps that guessed
  };
  // Guesses at most `rounds` tokens for each sequence. A sequence gets fewer guesses or none if the model has not
  // read its tokens or lacks pages for it; the model then reads a bounded number of these tokens, so that streams do
  // not wait long. `now` is the clock. A returned error comes from the device: the worker can't go on. After any
  // other failure the model stops guessing, and the log says why.
  Result<Times> guess(std::span<Wanted> wanted, std::uint32_t rounds,
                      const std::function<std::chrono::steady_clock::time_point()>& now);

  std::uint64_t read_tokens() const { return read_tokens_; }
  // Returns the device memory of its weights, its KV cache and its states.
  double bytes() const;
  const PagePool& pool() const { return pool_; }

 private:
  bool knows(DraftContext& context, std::span<const TokenId> tokens) const;
  void begin(Wanted& wanted);
  static void empty(DraftContext& context);
  static void starve(DraftContext& context, std::size_t tokens);
  bool cover(DraftContext& context, std::uint32_t positions);
  Result<bool> read(std::span<Wanted> wanted);
  std::uint32_t positions_for(const Wanted& wanted, std::uint32_t rounds) const;
  void choose_members(std::span<Wanted> wanted, std::uint32_t rounds);
  Result<bool> run_round(std::span<Wanted> wanted, std::uint32_t round);
  void clear_step();
  void add_column(const Column& column, std::span<const float> hidden);
  std::span<const float> hidden_of(const DraftContext& context, std::uint32_t position) const;
  void add_table(const DraftContext& context, StateUse use);
  Result<std::span<const ColumnOutput>> run_step();
  void computed_to(DraftContext& context, std::span<const TokenId> tokens, std::uint32_t end);

  Executor& executor_;
  ExecutorLimits limits_;
  std::uint32_t vocabulary_;  // of the model for which it guesses
  PagePool pool_;
  StatePairs states_;
  bool off_ = false;
  std::uint32_t read_columns_;  // in a step that reads
  std::uint64_t read_tokens_ = 0;

  // Scratch of guess().
  std::vector<Column> columns_;
  std::vector<std::span<const float>> hidden_;  // by column, for a block that drafts tokens
  std::vector<std::span<const PageIndex>> tables_;
  std::vector<WindowPages> windows_;
  std::vector<StateUse> uses_;
  std::vector<std::uint32_t> members_;  // indices of wanted sequences that get guesses
  std::vector<std::uint32_t>
      ends_;  // for a step that reads: the position after its columns, by index of `wanted`
};

}  // namespace bulkhead::engine
