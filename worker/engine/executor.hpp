// The interface between the engine and the device: a step goes in, tokens and logits come out. The
// engine knows no Vulkan; the executor knows no requests.
//
// A step is a list of columns. A column is one token of one sequence at one position. The executor
// writes the column's key and value to the sequence's pages, lets it attend to all positions up to
// its own, and makes its logits on demand. Generated tokens and chunks of prompts are columns
// alike, and a step may mix them. A column's result depends on its sequence alone, to the last bit:
// not on the other columns, and not on how a prompt was cut into chunks.
//
// Several steps may be in flight (ExecutorLimits::steps_in_flight). The device computes them one
// after another, and each sees what the earlier ones wrote. A column may take its token from an
// output of the step submitted just before its own, so the device need not wait for the host to
// read that token.
//
// A column's token may be a guess (a draft). If the guess turns out wrong, what the column wrote is
// dead: the next step writes to the same positions before any column reads them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/worker_figures.hpp"

namespace bulkhead::engine {

using TokenId = std::uint32_t;
using PageIndex = std::uint32_t;

// What the device makes of a page's bytes: equal for equal pages, and hardly ever for others.
using PageSum = std::array<std::uint32_t, 4>;

enum class Output : std::uint8_t {
  kNone,    // a prompt token before the last
  kGreedy,  // the best token and its log-probability (chosen on the device; ties go to the lower id)
  kLogits,   // as kGreedy, and the whole row of logits
  kSampled,  // as kGreedy, but the token is drawn on the device by Column::choice
  kHidden,   // as kGreedy, and the hidden state behind the last norm, of which the logits are made
};

// A draw, as worker/engine/sampler.hpp defines it; without penalties, at a temperature above 0.
struct Choice {
  float temperature = 1;
  std::uint32_t top_k = 0;  // 0: all; at most ExecutorLimits::sampled_top_k
  float top_p = 1;
  float min_p = 0;
  std::uint64_t seed = 0;
  std::uint32_t first = 1;  // position of the token that draw 0 gives
};

constexpr std::uint32_t kByHost = 0xFFFFFFFF;

constexpr std::uint32_t kMostDrafts = 15;  // of one sequence in a step: 16 columns with its own

struct Column {
  TokenId token = 0;
  std::uint32_t position = 0;  // from 0 within its sequence
  std::uint32_t sequence = 0;  // index into Step::sequences
  Output output = Output::kNone;
  // kByHost: the host chose this token; it is in `token`. Else the column takes the token that the
  // step submitted before this one chose as its n-th output (from 0; not one of kLogits).
  std::uint32_t chosen_by = kByHost;
  const Choice* choice = nullptr;  // kSampled: until submit() returns
  // kGreedy, kSampled: the device also tells the log-probability of the chosen token and those of
  // this many best tokens; at most ExecutorLimits::most_logprobs. -1: none.
  std::int32_t logprobs = -1;
};

// The slots that hold a sequence's states in a step. Layers of some models carry states from position to
// position beside the pages (ExecutorLimits::states). A slot belongs to one sequence at a time. The device
// computes steps in order, so another sequence may have the slot in the next step.
struct StateUse {
  std::uint32_t from = 0;  // before the sequence's first column; ignored where that is position 0
  std::uint32_t to = 0;    // after its last one; may be `from`
  // The slot `saved` gets the states, too, after so many of the sequence's columns; 0: never.
  std::uint32_t saved_after = 0;
  std::uint32_t saved = 0;
};

// The window pages of a sequence (ExecutorLimits::window), from position `first` * page_tokens on.
// The sequence has released earlier ones, because no column of this step sees them.
struct WindowPages {
  std::uint32_t first = 0;           // index of pages.front() among the sequence's pages
  std::span<const PageIndex> pages;  // in [total_pages, total_pages + window_pages)
};

// The number of pages that a sequence keeps behind its window. A successor may find the sequence up
// to so many pages shorter, because the last pages had no sums yet.
inline constexpr std::uint32_t kPagesBehindWindow = 2;

// Returns how many window pages a sequence needs to go on: those that its next position sees,
// wherever a page begins, those that it keeps behind them, and one more to write to.
constexpr std::uint32_t window_reserve(std::uint32_t window, std::uint32_t page_tokens) {
  return (window + 2 * page_tokens - 2) / page_tokens + kPagesBehindWindow + 1;
}

// Columns of one sequence come in rising, gapless positions. Of models with states they also follow each
// other, and sequences come in rising order.
struct Step {
  std::span<const Column> columns;
  // For each sequence its pages in order; positions [i*page_tokens, (i+1)*page_tokens) lie in
  // pages[i].
  std::span<const std::span<const PageIndex>> sequences;
  std::span<const StateUse> states = {};      // of each sequence, if the model has states
  std::span<const WindowPages> windows = {};  // of each sequence, if layers have windows
};

struct RankedToken {
  TokenId token = 0;
  float value = 0;  // logit or log-probability
};

struct ColumnOutput {
  std::uint32_t column = 0;       // index into Step::columns
  TokenId best = 0;               // kSampled: the token that was drawn
  float best_logprob = 0;         // natural log of the best token's probability over the whole
                                  // vocabulary
  std::span<const float> logits;  // kLogits: [vocabulary]; else empty
  std::span<const float> hidden;  // kHidden: [embedding]; else empty
  // Column::logprobs: of `best`, and the best tokens with theirs, best first.
  float logprob = 0;
  std::span<const RankedToken> top;
};

struct ExecutorLimits {
  std::uint32_t max_columns = 0;    // of a step
  std::uint32_t max_outputs = 0;    // columns of a step that may ask for an output
  std::uint32_t max_sequences = 0;  // of a step
  std::uint32_t page_tokens = 0;    // positions in a page
  std::uint32_t total_pages = 0;
  // The number of positions that windowed layers see. These layers have pages of their own,
  // numbered from total_pages on. 0: a page holds the keys and values of all layers.
  std::uint32_t window = 0;
  std::uint32_t window_pages = 0;
  std::uint32_t states = 0;   // slots for what layers carry on; 0: the model's layers carry nothing
  std::uint32_t context = 0;  // positions a sequence may have
  std::uint32_t asked_context =
      0;  // that it should have; context is less where memory holds no more
  std::uint32_t model_context = 0;  // that the model allows
  std::uint32_t vocabulary = 0;
  std::uint32_t embedding = 0;        // entries of a hidden state; 0: no kHidden at all
  std::uint32_t sampled_top_k = 0;    // kSampled with a top_k up to this; 0: no kSampled at all
  std::uint32_t steps_in_flight = 1;  // that may be submitted and not waited for
  // Whether a column may take its token from an output of the step before (Column::chosen_by). If not, sequences that
  // generate take turns: each step has a part of them, so that several steps are in flight all the same.
  bool hands_tokens_on = true;
  // Columns of a step whose tokens are guesses; 0: none, where a position can't be computed again.
  std::uint32_t max_drafts = 0;
  std::int32_t most_logprobs = -1;  // Column::logprobs up to this; -1: not at all
  std::uint32_t step_us =
      0;  // microseconds that a step of one column took after loading; 0: unknown
  std::uint32_t most_pages_summed = 0;  // of one start_sums(); 0: it makes no sums
  // The number by which start_sums() knows the first slot of states; the other slots follow.
  PageIndex first_state() const { return total_pages + window_pages; }
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual const ExecutorLimits& limits() const = 0;

  // Allocates memory for so many outputs of kind kLogits in a step. The engine calls this before it accepts a
  // request that may ask for them; steps may be in flight. The memory stays until the end. kResourceExhausted:
  // the host has too little memory; steps with fewer such outputs still work.
  virtual Status reserve_logits(std::uint32_t /*outputs*/) { return {}; }

  // Starts a step behind those in flight; there must be fewer than steps_in_flight. The caller may
  // free what the step refers to after the call.
  virtual Status submit(const Step& step) = 0;
  // Ends the oldest step in flight. Outputs in the order of the columns that asked; valid until the
  // next submit or wait. kDeviceLost ends the worker.
  virtual Result<std::span<const ColumnOutput>> wait() = 0;

  // Makes sums over memory if limits().most_pages_summed is not 0. The device computes a lot after the
  // steps that were submitted before it, and before those submitted after it. A lot has the sums of
  // `pages`, to which no step in flight may write; slots of states count as pages (first_state()). It
  // also goes through the next `weight_bytes` of the weights, and begins anew at their end. At most
  // kSumsInFlight lots may be in flight.
  static constexpr std::uint32_t kSumsInFlight = 4;
  virtual Status start_sums(std::span<const PageIndex> /*pages*/, std::uint64_t /*weight_bytes*/) {
    return Error(ErrorCode::kUnsupported, "this executor makes no sums");
  }
  // Waits for the oldest lot; its pages' sums, valid until the next of these two calls. kDeviceLost,
  // too, when the weights are no longer what was loaded.
  virtual Result<std::span<const PageSum>> finish_sums() {
    return Error(ErrorCode::kUnsupported, "this executor makes no sums");
  }

  // Facts for `ready` and `stats`.
  virtual std::string device_name() const = 0;
  virtual std::string numerics_id() const = 0;
  virtual std::uint64_t weight_bytes() const = 0;
  virtual std::vector<FigureValue> counters() const = 0;
  // Times the kernels of a step of one column; counters() then has the times. No step may be in
  // flight. A device that can't measure times is no error.
  virtual Status profile() { return {}; }
  struct Optimization {
    std::string name;
    bool active = false;
    std::string reason;
  };
  virtual std::vector<Optimization> optimizations() const = 0;
};

}  // namespace bulkhead::engine
