// The interface between the engine and the device: a step goes in, tokens and logits come out. The
// engine uses no Vulkan; the executor gets no requests.
//
// A step is a list of columns. A column is one token of one sequence at one position. The executor writes the
// column's key and value to the sequence's pages, lets it attend to all positions up to its own (in an encoder to all
// positions of the sequence), and computes its logits on demand. Generated tokens and chunks of prompts are both
// columns, and a step may mix them. A column's result depends on its sequence alone, to the last bit: not on the other
// columns, and not on how a prompt was cut into chunks.
//
// Several steps may be in flight (ExecutorLimits::steps_in_flight). The device computes them one after another, and
// each sees what the earlier ones wrote. A column may take its token from an output of the step that was submitted
// just before its own, so the device need not wait until the host has read that token.
//
// A column's token may be a guess (a draft). If the guess turns out wrong, what the column wrote is dead: the next
// step writes to the same positions before any column reads them.
#pragma once

#include <algorithm>
#include <array>
#include <cfloat>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/worker_figures.hpp"

namespace bulkhead::engine {

using TokenId = std::uint32_t;
using PageIndex = std::uint32_t;
using StateSlot = std::uint32_t;  // ExecutorLimits::states
inline constexpr StateSlot kNoState = 0xFFFFFFFF;

// The device's checksum of a page: equal pages have equal sums, and different pages almost never do.
using PageSum = std::array<std::uint32_t, 4>;

enum class Output : std::uint8_t {
  kNone,  // a prompt token before the last one
  // the best token and its log-probability; of equally good tokens the device chooses the one with the lowest id
  kGreedy,
  kLogits,   // like kGreedy, plus the whole row of logits
  kSampled,  // like kGreedy, but the device draws the token as Column::choice says
  kHidden,  // like kGreedy, plus the hidden state after the last norm, from which the logits are computed
};

// A draw, as worker/engine/sampler.hpp defines it, at a temperature above 0.
struct Choice {
  float temperature = 1;
  std::uint32_t top_k = 0;  // 0: all; at most ExecutorLimits::sampled_top_k
  float top_p = 1;
  float min_p = 0;
  std::uint64_t seed = 0;
  // The position of the token that draw 0 gives, modulo 2^32: it may lie before position 0.
  std::uint32_t first = 1;
};

constexpr std::uint32_t kByHost = 0xFFFFFFFF;

constexpr std::uint32_t kMostDrafts =
    15;  // of one sequence in a step: 16 columns including its own

struct Column {
  TokenId token = 0;
  std::uint32_t position = 0;  // from 0 within its sequence
  std::uint32_t sequence = 0;  // index into Step::sequences
  Output output = Output::kNone;
  // kByHost: the host chose this token; it is in `token`. Otherwise the column takes the token of an output of the
  // step submitted before this one: this is that output's index (from 0; not a kLogits output).
  std::uint32_t chosen_by = kByHost;
  const Choice* choice = nullptr;  // for kSampled; valid until submit() returns
  // For kGreedy and kSampled: the device also reports the log-probability of the chosen token and of this many best
  // tokens; at most ExecutorLimits::most_logprobs. -1: none.
  std::int32_t logprobs = -1;
  // For kGreedy and kSampled: Executor::choose() will say which tokens may come, and what changes in their logits.
  // Log-probabilities stay those of the row before these changes.
  bool adjusted = false;
  bool edited = false;        // for adjusted columns: the adjustment may have edits
  bool tells_hidden = false;  // for outputs: they also have the hidden state of kHidden outputs
  // For a draft, if the model has states: the slot that gets the states after this column (see StateUse). The other
  // columns have kNoState.
  StateSlot state_slot = kNoState;
};

// A change of one token's logit before the draw; sampler.hpp defines the computation.
struct LogitEdit {
  TokenId token = 0;
  float bias = 0;             // is added first
  float subtrahend = 0;       // is subtracted last
  std::uint32_t repeats = 0;  // 1: LogitEdits::repetition applies in between
};

// The changes of a row; a token occurs once in `list`, and once in `ahead`.
struct LogitEdits {
  std::span<const LogitEdit> list;
  std::span<const LogitEdit>
      ahead;             // replace those of `list` with the same tokens; at most kMostDrafts
  float repetition = 1;  // the repetition penalty
  bool empty() const { return list.empty() && ahead.empty(); }
  // Returns what positive logits are multiplied by; bounded, because 0 * infinity would not be 0.
  float inverse() const { return std::min(1.0F / repetition, FLT_MAX); }
};

// What an adjusted output gets before its draw.
struct Adjustment {
  // Bit t % 32 of word t / 32 stands for token t, and tokens beyond the last word may not come. A mask must allow some
  // token; an empty one allows all.
  std::span<const std::uint32_t> mask;
  LogitEdits edits = {};
};

// The slots that hold a sequence's states in a step. Layers of some models carry states from position to position in
// addition to the pages (ExecutorLimits::states). A slot belongs to one sequence at a time. The device computes steps
// in order, so another sequence may have the slot in the next step.
//
// Drafts are a sequence's last columns, after at least one other column. A wrong draft changes the states for good. So
// each draft has a slot of its own for the states after it (Column::state_slot), and the sequence continues from the
// slot of its last right draft, or from `to`. That copies no states. Another way would be to keep only the states
// before the drafts, and to compute right drafts again in the next step. But then every right draft would be computed
// twice, and a column costs more than a write of the states: in Qwen3.5-35B-A3B at four bits, a column's experts have
// some 600 MB, and a sequence's states 60 MB.
struct StateUse {
  StateSlot from = 0;  // read before the sequence's first column; ignored if that is position 0
  StateSlot to = 0;    // written after its last column that is no draft; may equal `from`
  // The slot `saved` also gets the states after this many columns of the sequence, none of them a draft; 0: no states
  // are saved.
  std::uint32_t saved_after = 0;
  StateSlot saved = 0;
};

// The window pages of a sequence (ExecutorLimits::window), from position `first` * page_tokens on. The sequence has
// released earlier window pages, because no column of this step sees them.
struct WindowPages {
  std::uint32_t first = 0;           // index of pages.front() among the sequence's pages
  std::span<const PageIndex> pages;  // in [total_pages, total_pages + window_pages)
};

// How many pages a sequence keeps before its window. A successor may find the sequence shorter by up to this many
// pages, because the last pages had no sums yet.
inline constexpr std::uint32_t kPagesBehindWindow = 2;

// Returns how many window pages a sequence needs to continue: those that its next position sees, wherever a page
// begins, those that it keeps before them, and one more to write to.
constexpr std::uint32_t window_reserve(std::uint32_t window, std::uint32_t page_tokens) {
  return (window + 2 * page_tokens - 2) / page_tokens + kPagesBehindWindow + 1;
}

// The columns of one sequence have consecutive, rising positions. For models with states these columns must also be
// neighbours, and the sequences must come in rising order.
struct Step {
  std::span<const Column> columns;
  // For each sequence, its pages in order; pages[i] holds positions [i*page_tokens, (i+1)*page_tokens).
  std::span<const std::span<const PageIndex>> sequences;
  std::span<const StateUse> states = {};      // for each sequence, if the model has states
  std::span<const WindowPages> windows = {};  // for each sequence, if layers have windows
  // For each column: the hidden state that the model takes beside the token (ExecutorLimits::takes_hidden).
  std::span<const std::span<const float>> hidden = {};
};

struct RankedToken {
  TokenId token = 0;
  float value = 0;  // logit or log-probability
};

struct ColumnOutput {
  std::uint32_t column = 0;       // index into Step::columns
  TokenId best = 0;               // for kSampled: the token that was drawn
  float best_logprob = 0;         // natural log of the best token's probability over the whole
                                  // vocabulary
  std::span<const float> logits;  // for kLogits: [vocabulary]; otherwise empty
  // For kHidden and Column::tells_hidden: [embedding]; otherwise empty.
  std::span<const float> hidden;
  // For Column::logprobs: the log-probability of `best`, and the best tokens with theirs, best first.
  float logprob = 0;
  std::span<const RankedToken> top;
};

struct ExecutorLimits {
  std::uint32_t max_columns = 0;    // per step
  std::uint32_t max_outputs = 0;    // columns of a step that may ask for an output
  std::uint32_t max_sequences = 0;  // per step
  std::uint32_t page_tokens = 0;    // positions in a page
  std::uint32_t total_pages = 0;
  // A cache that grows (Executor::grow): pages [0, first_pages) always have memory, and after them come slabs of
  // slab_pages each, up to total_pages, which have memory only after grow(). slab_pages 0: all pages have memory.
  std::uint32_t first_pages = 0;
  std::uint32_t slab_pages = 0;
  // Below this number of pages the cache grows rather than empties pages that a later prompt could reuse.
  std::uint32_t eager_pages = 0;
  // The number of positions that windowed layers see. These layers have pages of their own, numbered from total_pages
  // on. 0: a page holds the keys and values of all layers.
  std::uint32_t window = 0;
  std::uint32_t window_pages = 0;
  // If the cache grows, window pages have slabs of their own: as first_pages, slab_pages and eager_pages. Their
  // numbers follow those of full pages' slabs. At most slabs() slabs of both kinds together have memory at a time.
  std::uint32_t window_first_pages = 0;
  std::uint32_t window_slab_pages = 0;
  std::uint32_t window_eager_pages = 0;
  std::uint32_t states =
      0;  // slots for the states of layers; 0: no layer of the model carries states
  std::uint32_t context = 0;  // positions that a sequence may have
  // The positions that a sequence should have. `context` is less if the memory holds no more.
  std::uint32_t asked_context = 0;
  std::uint32_t model_context = 0;  // what the model allows
  std::uint32_t vocabulary = 0;
  std::uint32_t embedding = 0;      // entries of a hidden state; 0: kHidden is not available
  std::uint32_t sampled_top_k = 0;  // the largest top_k for kSampled; 0: kSampled is not available
  std::uint32_t steps_in_flight = 1;  // how many steps may be submitted and not waited for
  // Whether a column may take its token from an output of the step before (Column::chosen_by). If not, generating
  // sequences take turns: each step has only some of them, so that several steps can still be in flight.
  bool hands_tokens_on = true;
  // The most columns of a step whose tokens are guesses. For models with states, `states` includes a slot for each.
  std::uint32_t max_drafts = 0;
  std::int32_t most_logprobs = -1;  // the largest Column::logprobs; -1: none
  bool adjusts = false;             // whether Column::adjusted is available
  // Whether a column takes a hidden state of [embedding] entries beside its token: the model is a block that drafts
  // tokens for another model.
  bool takes_hidden = false;
  // Whether columns see their whole sequence: its columns are then all in one step, and only kHidden outputs have a
  // meaning. `context` is not above max_columns.
  bool both_ways = false;
  std::uint32_t step_us =
      0;  // microseconds that a step of one column took after loading; 0: unknown
  std::uint32_t most_pages_summed = 0;  // in one start_sums(); 0: the executor makes no sums
  // The numbers of columns for which the executor has steps, rising. A step with any other number of columns takes
  // about as long as one with the next larger of these. Empty: unknown.
  std::vector<std::uint32_t> widths = {};
  // The number that stands for the first state slot in start_sums(); the other slots follow.
  PageIndex first_state() const { return total_pages + window_pages; }
  // The pages that always have memory, and how many slabs there can be after them.
  std::uint32_t pages_at_first() const { return slab_pages == 0 ? total_pages : first_pages; }
  std::uint32_t window_pages_at_first() const {
    return window_slab_pages == 0 ? window_pages : window_first_pages;
  }
  std::uint32_t slabs() const {
    return slab_pages == 0 ? 0 : (total_pages - first_pages) / slab_pages;
  }
  std::uint32_t window_slabs() const {
    return window_slab_pages == 0 ? 0 : (window_pages - window_first_pages) / window_slab_pages;
  }
  std::uint32_t slab_numbers() const { return slabs() + window_slabs(); }
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual const ExecutorLimits& limits() const = 0;

  // Allocates memory for this many outputs of kind kLogits in a step. The engine calls this before it accepts a
  // request that may ask for them; steps may be in flight. The memory is kept until the end. kResourceExhausted: the
  // host has too little memory; steps with fewer such outputs still work.
  virtual Status reserve_logits(std::uint32_t /*outputs*/) { return {}; }

  // Allocates memory for this many edits in the lists of all outputs of a step together. Outputs with the same list
  // share it, and LogitEdits::ahead comes on top. The engine calls this before it accepts a request with adjusted
  // columns; steps may be in flight. The memory is kept until the end. Errors are those of reserve_logits().
  virtual Status reserve_adjustments(std::uint64_t /*edits*/) { return {}; }

  // Gives memory to the pages of a slab that has none. The first page of a slab of full pages is
  // first_pages + slab * slab_pages; that of a slab of window pages is
  // total_pages + window_first_pages + (slab - slabs()) * window_slab_pages. Steps may be in flight. Returns false, and
  // nothing has changed, if the device has no memory to spare.
  virtual bool grow(std::uint32_t /*slab*/) { return false; }
  // Returns the slabs that have memory from the start on: those of a predecessor.
  virtual std::vector<std::uint32_t> present_slabs() const { return {}; }
  // Takes a slab's memory back. No step and no lot of sums in flight may have one of its pages.
  virtual void shrink(std::uint32_t /*slab*/) {}

  // Starts a step after those in flight; fewer than steps_in_flight must be in flight. The caller may free what the
  // step refers to after the call.
  virtual Status submit(const Step& step) = 0;
  // Says what the adjusted outputs of the step submitted last get before their draws, in the order of these outputs.
  // The device computes the step's logits meanwhile. Call it once after submit() of a step with adjusted columns,
  // before the next submit() and before wait() for that step. The executor may keep the adjustments until the next
  // submit() or wait(): the device has less to do between two steps if it gets the adjustments together with the
  // next step.
  virtual Status choose(std::span<const Adjustment> /*adjustments*/) {
    return Error(ErrorCode::kUnsupported, "this executor adjusts no logits");
  }
  // Sends what choose() has kept. A caller calls this if it does something else before the next submit() or
  // wait().
  virtual Status flush() { return {}; }
  // For steps that may take longer than the engine may be silent. Waits at most `wait_ms` for the oldest step in
  // flight. Returns false if that step still runs: the engine gives a sign of life and asks again. Returns true if the
  // engine may call wait() now; an executor of short steps returns true at once.
  virtual Result<bool> ended(std::uint32_t /*wait_ms*/) { return true; }
  // Waits until the oldest step in flight has ended. Returns the outputs in the order of the columns that asked for
  // them; valid until the next submit or wait. kDeviceLost ends the worker.
  virtual Result<std::span<const ColumnOutput>> wait() = 0;
  // Returns whether the step that wait() returned last was lost: it has no outputs, and the states and the keys and
  // values that it was to write are undefined. It may happen only to models with states; other steps are computed
  // again.
  virtual bool lost() const { return false; }

  // Starts a lot of checksums, if limits().most_pages_summed is not 0. The device computes the lot after the steps
  // that were submitted before it, and before those submitted after it. A lot has the sums of `pages`, to which no
  // step in flight may write; slots of states count as pages (first_state()). It also checks the next `weight_bytes`
  // of the weights, and begins again when it reaches their end. At most kSumsInFlight lots may be in flight.
  static constexpr std::uint32_t kSumsInFlight = 4;
  virtual Status start_sums(std::span<const PageIndex> /*pages*/, std::uint64_t /*weight_bytes*/) {
    return Error(ErrorCode::kUnsupported, "this executor makes no sums");
  }
  // Waits for the oldest lot and returns its pages' sums, valid until the next of these two calls. Also returns
  // kDeviceLost if the weights are no longer what was loaded.
  virtual Result<std::span<const PageSum>> finish_sums() {
    return Error(ErrorCode::kUnsupported, "this executor makes no sums");
  }

  // For tests, in builds with fault injection: changes one bit of a page that no step in flight writes to, and waits
  // until it has changed.
  virtual Status change_bit(PageIndex /*page*/) {
    return Error(ErrorCode::kUnsupported, "this build damages no memory");
  }

  // Facts for the messages Ready and Stats.
  virtual std::string device_name() const = 0;
  virtual std::string numerics_id() const = 0;
  virtual std::uint64_t weight_bytes() const = 0;
  virtual std::vector<FigureValue> counters() const = 0;
  // Times the kernels of a step of one column; counters() then has the times. No step may be in flight. It is no
  // error if the device can't measure times.
  virtual Status profile() { return {}; }
  struct Optimization {
    std::string name;
    bool active = false;
    std::string reason;
  };
  virtual std::vector<Optimization> optimizations() const = 0;
};

}  // namespace bulkhead::engine
