// Decides which columns run in the next step: continuous batching over a paged KV cache.
//
// A step has one column for every sequence that generates. The rest of `prefill_chunk` columns, at least half of it,
// is for sequences whose tokens are still to be computed: new prompts, and sequences that lost their pages. These
// sequences take turns, the least recently served first. A turn ends with the prompt, or once it has had half of the
// columns that a step without generating sequences may have. So a prompt of usual length is read at once, and a long
// prompt delays another one by a turn at a time. The scheduler cuts a chunk to what `max_token_gap` leaves time for
// (prompt_pace.hpp). A sequence whose token the host chooses waits for all steps in flight; while such a sequence
// generates, a chunk gets that time divided by the number of steps in flight. While no sequence generates, prompts
// delay nobody, and a step has up to `prefill_chunk_alone` columns.
//
// Admission. The scheduler admits waiting sequences in the order of their arrival, each when enough pages are free for
// all its tokens and one more. If too few are free for a sequence, later ones that fit may pass it, but only as many as
// may run at once, and the cache does not grow for them. After that nobody passes the sequence, and it gets all pages
// that become free. So a short request need not wait until a long one before it has enough pages, and the long one
// begins at the latest when all sequences that run by then have ended.
//
// Pages. When a running sequence needs a page and none is free, the scheduler preempts the youngest running sequence:
// that sequence gives its pages back and waits before all that arrived later. Once it is admitted again, its prompt and
// the tokens that it had generated are computed again, which gives the same bits by the executor's contract. The oldest
// running sequence is never preempted for another, and each sequence fits the cache alone (fits() is asked before
// add()), so there is always progress.
//
// Growth (ExecutorLimits::slab_pages). If the cache can grow, the scheduler asks for another slab of pages before it
// preempts a sequence, and before it leaves a waiting sequence outside. Up to eager_pages it also asks for one rather
// than let pages be emptied that later prompts could reuse; beyond, the cache grows only for pages in use, because a
// larger cache takes longer to recover from a death. In a step it grows by one slab, or by more if no sequence runs
// that would wait for them. If there is no memory, all is as in a cache of a fixed size. Whether a sequence fits is
// judged by the pages that are always there. Window pages grow in the same way, by slabs of their own. If there is no
// memory for one kind while the other kind has pages of two slabs to spare, a slab of that kind goes back.
//
// Windows (ExecutorLimits::window). A sequence gets window pages when it reaches their positions, so a step has no
// more columns of a prompt than there are window pages for. It releases those before its window when the steps that
// could see them have ended, and keeps enough to continue (window_reserve()). If sequences that read prompts have all
// window pages and none can continue, the scheduler preempts the youngest.
//
// Prefixes (with `prefix_cache`). A sequence reuses the full pages that hold the beginning of
// its tokens: when it is admitted, and before each of its chunks, because another sequence may have
// computed them meanwhile. Its last token is always computed, because only that gives logits. A
// sequence whose next page another one is computing waits for it, so prompts that arrive together
// are computed once; the sequence that is furthest never waits. A page can be found as soon as the
// step that filled it has ended, and as long as nothing else needs its room. That includes pages of
// answers, and of sequences that are finished, cancelled or preempted.
//
// Steps in flight. A step may be planned while up to ExecutorLimits::steps_in_flight - 1 earlier steps are still
// computed. If the device chooses a sequence's token, the sequence's next column takes the token from the step before
// it, and the host learns it later. A sequence never runs past most_tokens that way, but it may run past an end that
// only the token reveals; the owner then removes the sequence, and what was computed past the end is dropped. If the
// host chooses the token (Output::kLogits), the sequence skips the steps that are planned before the token is known.
// Once the owner knows a token, it may change who chooses the next one (ask()). The scheduler then drops what steps
// in flight compute for the sequence, as after a wrong draft, and computes the position again.
//
// Drafts. The owner may give a generating sequence guesses of the tokens after its next one. Each guess gets a column
// of its own after the sequence's own column, with an output. Once the step has ended, the owner takes the outputs
// in order, and confirm() says for each whether its column had the token that the sequence has there now. After the
// first wrong guess, the owner drops what later columns computed, and the next step overwrites their keys and values.
// The scheduler never counts such positions as computed, so no other sequence and no ledger gets a page that holds
// one. It plans no step while a step with drafts is in flight, because nobody knows yet where that step's sequences
// will continue. Drafts never take a page from a sequence, and a step has no drafts while a prompt could be read.
//
// Doubt. If the content of pages has changed, or if a sequence's logits are not numbers, the scheduler removes these
// pages and all pages that follow them from the cache, and sends back each sequence that uses one of them. It drops
// what steps in flight compute for such a sequence, and computes the sequence's tokens again. A preempted sequence may
// have used one of the pages, so the scheduler drops what steps in flight compute for it, too. Tokens that the owner
// has taken stay. A sequence whose logits were not numbers has nothing to do with the cache from then on.
//
// The pages of a sequence that is removed or preempted become free only when the last step that may write to them has
// ended.
//
// States (ExecutorLimits::states). A slot holds what a model's layers carry from position to position. A
// running sequence owns its slot until it is removed or preempted. The device computes steps in order, so the
// next owner may have the slot at once. A draft has a slot of its own for the states after it. If confirm() finds the
// draft right, the sequence takes that slot for its own. The slots of wrong drafts become free. So no sequence
// continues from what a wrong draft left, and no snapshot holds it.
//
// Pages without states are of no use to a new sequence. So the sequence reuses the pages up to one after which a step
// saved the states, too (state_book.hpp), and goes on from there. The scheduler has steps save the states after these
// pages, and keeps a right draft's slot where the draft fills one:
//
//   the last page that ends some tokens before a prompt does
//                                                a chat template ends the same prompt differently in the next turn
//   the page where a prompt parts from others    more prompts are likely to begin like this; the scheduler notices it
//                                                when it finds more pages than states for a prompt
//   the last page of each step of a prompt, and each page of an answer; only the latest of these is kept: for the
//   same sequence after a preemption or this process's death, and for the next turn of a chat
//
// The scheduler works with tokens and positions. It does not deal with sampling, text, requests or the device. Use
// it from one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "worker/engine/executor.hpp"
#include "worker/engine/kv_cache.hpp"
#include "worker/engine/prompt_pace.hpp"
#include "worker/engine/state_book.hpp"

namespace bulkhead::engine {

// A sequence as the scheduler sees it. The owner fills the first part, and appends to `tokens` after a step gave a
// new one; the rest belongs to the scheduler. The object must not move or be destroyed between add() and remove().
struct Sequence {
  std::vector<TokenId> tokens;      // the prompt, then the generated tokens
  Output output = Output::kGreedy;  // what its last column asks for
  Choice choice;                    // for kSampled
  std::int32_t logprobs = -1;       // for kGreedy and kSampled: Column::logprobs
  bool adjusted = false;            // the same: Column::adjusted
  bool edited = false;              // the same: Column::edited
  bool tells_hidden = false;        // Column::tells_hidden
  std::uint32_t most_tokens = 0;    // tokens it may grow to (for reserving host memory)
  // Where its generated tokens begin, including those that a dead process generated. Other sequences are not likely to
  // continue from positions behind it while this one runs.
  std::uint32_t own_from = 0xFFFFFFFF;
  bool may_ask_otherwise = false;  // Scheduler::ask() may change `output` while it generates
  // What each of the first `prompt_length` tokens except the last of them asks for, besides `output`: kNone, kLogits or
  // kHidden. Unless this is kNone, the sequence reuses no pages, because their columns would not be computed.
  Output prompt_output = Output::kNone;
  std::uint32_t prompt_length = 0;
  // Guesses for the next plan() of the tokens that follow the first length() + 1 tokens. plan() drops the guesses
  // that it does not use. They must be tokens of the vocabulary; valid until plan() returns.
  std::span<const TokenId> drafts;

  enum class State : std::uint8_t { kDetached, kWaiting, kRunning };
  State state = State::kDetached;
  PageList pages;
  StateSlot slot = kNoState;    // the slot of its states, while it runs
  StateSlot resume = kNoState;  // a snapshot from which its next columns continue instead
  // Set if the sequence could not continue after positions that it shares with other sequences, because a snapshot
  // or window pages were missing: the end of these positions.
  std::uint32_t branch = 0;
  // The latest snapshot that is kept only until the next one: its page, and its number in StateBook.
  PageIndex passing_page = 0;
  std::uint64_t passing = 0;
  std::uint32_t computed = 0;     // positions whose key and value lie in `pages`, or will when the
                                  // steps in flight have ended
  std::uint32_t known = 0;        // tokens that it had when it was admitted
  std::uint32_t done = 0;         // of `computed`, by steps that have ended
  std::uint32_t unknown = 0;      // tokens after `tokens` that steps in flight choose
  std::uint32_t row = 0;          // which output of step `planned_in` its last column's is
  std::uint32_t reused = 0;       // how many of `computed` were found in the cache before the
                                  // first preemption
  std::uint32_t reused_end = 0;   // the position after the pages that it found last
  std::uint32_t preemptions = 0;  // times it lost its pages
  std::uint64_t arrival = 0;      // numbers rise in the order of add()
  std::uint32_t passed = 0;       // how many later ones were admitted while it waited
  // It takes no pages from the cache and enters none there: its logits were not numbers once, and any page with its
  // tokens may be the reason.
  bool alone = false;
  std::uint64_t planned_in = 0;      // the last step that had columns of it
  std::uint64_t passed_over_in = 0;  // the last step that left its token to another step
  std::uint64_t served = 0;          // for taking turns among sequences that prefill
  std::uint32_t in_turn = 0;         // columns that it has had in its turn

  // Returns the number of tokens that have no key and value yet; 1 while it generates.
  std::uint32_t pending() const { return length() - computed; }
  // Returns the number of tokens, including those that are not known yet.
  std::uint32_t length() const { return static_cast<std::uint32_t>(tokens.size()) + unknown; }
};

struct SchedulerOptions {
  std::uint32_t max_batch = 16;  // sequences running at once
  std::uint32_t prefill_chunk =
      256;                    // columns of a step with prompts; see above; 0: all it may have
  bool prefix_cache = false;  // share full pages of equal beginnings
  // Columns of a step while no running sequence generates; if prefill_chunk is larger, that counts.
  std::uint32_t prefill_chunk_alone = 0;
  // The longest time between two tokens of a generating sequence while prompts are read; 0: no bound.
  std::chrono::milliseconds max_token_gap{0};
};

// The tokens that had to be computed before their sequence could continue to generate, and those that were found in
// the cache instead. All counts are since the start.
struct PrefixFigures {
  std::uint64_t hit_tokens = 0, hit_pages = 0;    // reused from the cache
  std::uint64_t miss_tokens = 0, miss_pages = 0;  // computed: columns, and full pages
};

class Scheduler {
 public:
  Scheduler(const ExecutorLimits& limits, const SchedulerOptions& options);

  // Returns the most tokens that one sequence may have, prompt and answer together: the context, or the whole cache
  // if that is smaller.
  std::uint32_t sequence_limit() const { return sequence_limit_; }
  bool fits(std::size_t tokens) const { return tokens > 0 && tokens <= sequence_limit_; }

  // Queues a sequence with at least one token; fits() must hold.
  void add(Sequence& sequence);
  // Removes it wherever it is, even while its steps are in flight.
  void remove(Sequence& sequence);

  // Plans the next step. Returns null if there is nothing to compute, or nothing before a step in flight has ended.
  // Call it while fewer than steps_in_flight steps are in flight. The step is valid until the next plan(). When the
  // executor has finished a step, call complete(), in the order of the steps. Then, before the next plan(), append
  // the step's tokens to its sequences, or remove the sequences.
  const Step* plan();
  void complete();
  // Reports how long the step took, measured from the end of the step before it. Call it right after complete(), if
  // the time is known.
  void took(std::chrono::nanoseconds time) {
    if (oldest().drafts == 0) pace_.ended(oldest().prompts, oldest().share, time);
  }
  // Returns whether the column's token is the sequence's; if not, its output is worthless. Call it between complete()
  // and the next plan(), for the step's outputs in the order of their columns, each after the tokens of the earlier
  // ones were appended. Returns false for a draft of a sequence that was removed.
  bool confirm(std::uint32_t column);
  // Changes what the last column of a sequence asks for. Call it between complete() and the next plan(), after the
  // sequence's last known token was appended. The scheduler drops what drafts and steps in flight compute for the
  // sequence, and computes the same positions again, because their tokens were chosen in another way.
  void ask(Sequence& sequence, Output output);
  // Returns whether the column of the same step is a draft.
  bool is_draft(std::uint32_t column) const {
    return column >= oldest().members[oldest().columns[column].sequence].drafts_from;
  }
  // Returns how many drafts the next step may have in total. 0 while a prompt could be read, and if plan() would plan
  // nothing because of drafts in flight.
  std::uint32_t draft_room() const;
  // Returns whether, by what is known now, the next step computes the sequence's next token. The first draft may then
  // guess the token after the first length() + 1 tokens.
  bool generates_next(const Sequence& sequence) const {
    return may_generate(sequence, step_number_ + 1);
  }
  std::span<Sequence* const> running_sequences() const { return running_; }
  std::uint32_t in_flight() const { return planned_ - (completed_ ? 1 : 0); }
  // The sequences in the oldest step in flight (between complete() and the next plan(): in the step that was
  // completed). A removed sequence is null.
  struct Member {
    Sequence* sequence = nullptr;
    std::uint32_t columns = 0;  // without drafts
    std::uint32_t outputs =
        0;  // how many of the columns, from the last one backwards, choose a token
    std::uint32_t preemptions = 0;  // the sequence's preemptions when this was planned
    StateSlot saved = kNoState;     // the slot that gets the states after position `saved_at` - 1
    std::uint32_t saved_at = 0;
    bool passing = false;  // the sequence's next snapshot replaces it
    std::uint32_t drafts_from =
        0;  // the sequence's drafts are the columns of the step from here on
  };
  std::span<const Member> members() const { return oldest().members; }
  // About the same step: the sequence and the position of a column, and the step's number, counted from 1.
  Sequence* sequence_of(std::uint32_t column) const {
    return oldest().members[oldest().columns[column].sequence].sequence;
  }
  std::uint32_t position_of(std::uint32_t column) const {
    return oldest().columns[column].position;
  }
  std::uint64_t step_number() const { return oldest().number; }
  // Returns the number of drafts in the step that was planned last.
  std::uint32_t planned_drafts() const { return records_[latest_].drafts; }
  // Returns the sequences in the step that was planned last.
  std::span<const Member> planned_members() const { return records_[latest_].members; }

  const PagePool& pool() const { return pool_; }
  const StateBook& states() const { return states_; }
  // Limits the prefill columns and the drafts of every step planned from now on, whoever generates: from 1 to the
  // larger of SchedulerOptions' two chunks. No result depends on it.
  void limit_prefill(std::uint32_t columns) {
    prefill_limit_ = std::clamp(columns, 1U, prefill_chunk_alone_);
  }
  std::uint32_t prefill_limit() const { return prefill_limit_; }
  std::uint32_t prefill_chunk() const { return prefill_chunk_; }

  // See "Doubt" above, and PagePool::drop. Call it between a step's end and complete(), or while nobody looks at a
  // step's outputs. Returns how many sequences were sent back.
  std::size_t distrust(std::span<const PageIndex> pages, PagePool::Fate fate);
  // The same for the pages of one running sequence, which is sent back in any case.
  void compute_again(Sequence& sequence);
  // Sends back the sequences of the step that has just ended, because the executor has lost it. Call it before
  // complete(). Returns how many sequences were sent back.
  std::size_t lose_step();
  // Returns whether the largest sequence still fits if these pages are left out, too.
  bool can_leave_out(std::span<const PageIndex> pages) const {
    return pool_.can_leave_out(pages, pool_.pages_for(sequence_limit_));
  }

  // Sets what gives memory to a slab of pages; it returns false if there is none to spare.
  using Grow = std::function<bool(std::uint32_t slab)>;
  void set_grow(Grow grow) { grow_ = std::move(grow); }
  // See PagePool. Lets none leave if the longest sequence needs it.
  void let_slab_leave(PageKind kind);
  // A predecessor's slab, whose memory is there.
  void take_slab(std::uint32_t slab) { pool_.add_slab(slab); }
  std::optional<std::uint32_t> slab_that_left() { return pool_.slab_that_left(); }

  // PagePool describes these functions. Call them, and adopt(), before the first add().
  void set_ledger(PageLedger* ledger) { pool_.set_ledger(ledger); }
  // StateBook describes this function. adopt_state() takes the states behind pages that adopt() has taken.
  void set_state_ledger(StateLedger* ledger) { states_.set_ledger(ledger); }
  bool adopt_state(PageIndex page, StateSlot slot);
  // StateBook::leave_out describes this function. Call it once no sequence can find the page behind which the slot was
  // saved.
  bool leave_out_state(StateSlot slot) { return states_.leave_out(slot); }
  std::uint32_t adopt(std::span<const EnteredPage> pages);
  std::uint32_t withhold(std::span<const PageIndex> pages) { return pool_.withhold(pages); }
  void settle() { pool_.settle(); }
  std::size_t running() const { return running_.size(); }
  std::size_t waiting() const { return waiting_.size(); }
  std::uint64_t steps() const { return step_number_; }
  const FigureCounts& counts() const { return counts_; }
  std::uint64_t preemptions() const { return counts_["preemptions_total"]; }
  const PrefixFigures& prefix_figures() const { return prefix_figures_; }

 private:
  enum class Need : std::uint8_t { kRunning, kWaiting };  // who needs pages
  std::uint32_t free_pages_of(PageKind kind) const;
  bool more_pages(PageKind kind, std::uint32_t wanted, Need need);
  bool more_pages_for(const Sequence& sequence);
  void let_slab_leave_for(PageKind kind);
  bool lacks_pages(PageKind kind, std::uint32_t wanted) const;
  std::size_t most_generating() const;
  void plan_generating();
  enum class Growth : std::uint8_t {
    kAllowed,
    kForbidden
  };  // whether the cache may grow for a sequence
  void admit();
  bool give_pages(Sequence& sequence, Growth growth);
  void run(Sequence& sequence);
  void wait_again(Sequence& sequence);
  void plan_prefill();
  std::uint64_t longest_sequence() const;
  bool cover_reserve(Sequence& sequence, Growth growth);
  std::uint32_t columns_with_windows(Sequence& sequence, std::uint32_t wanted);
  void slide_window(Sequence& sequence);
  bool pages_come_free_for(const Sequence& sequence) const;
  void preempt_for_windows();
  void publish(Sequence& sequence);
  bool shares_pages(const Sequence& sequence) const;
  static std::span<const TokenId> all_but_last(const Sequence& sequence);
  void go_on_after_shared(Sequence& sequence);
  bool waits_for_another(const Sequence& sequence) const;
  bool waits_for_snapshot(const Sequence& sequence) const;
  bool may_generate(const Sequence& sequence, std::uint64_t step) const;
  bool any_generates() const;
  double share_for_prompts() const;
  std::uint32_t within_width(std::uint32_t used, std::uint32_t count) const;
  std::uint32_t most_tokens_of(const Sequence& sequence) const;
  void preempt_youngest();
  void send_back(Sequence& sequence);
  void forget_coming_tokens(Sequence& sequence);
  void forget_outputs_of(const Sequence& sequence);
  void free_pages_of(Sequence& sequence);
  std::uint32_t reuse_pages(Sequence& sequence);
  std::uint32_t end_to_save(const Sequence& sequence) const;
  void go_on_from_snapshot(Sequence& sequence);
  void free_state_of(Sequence& sequence);
  StateUse use_of_states(Sequence& sequence, Member& member);
  void choose_saving(Sequence& sequence, Member& member) const;
  void keep_saved(Sequence& sequence, const Member& member);
  void go_on_after_draft(Sequence& sequence, Column& draft);
  void add_columns(Sequence& sequence, std::uint32_t count);
  void add_drafts(Sequence& sequence, std::span<const TokenId> drafts);

  struct Planned {
    std::uint64_t number = 0;
    std::uint64_t turns = 0;  // the value of turns_ when it was planned
    std::vector<Column> columns;
    std::vector<std::span<const PageIndex>> tables;
    std::vector<WindowPages> windows;
    std::vector<StateUse> states;
    std::vector<Member> members;
    PromptColumns prompts;
    double share = PromptPace::kAlone;  // the share that prompts were allowed
    std::uint32_t outputs = 0;
    std::uint32_t drafts = 0;
  };
  const Planned& oldest() const { return records_[oldest_]; }
  void forget_completed();
  void free_states_of_drafts(Planned& record);

  ExecutorLimits limits_;
  std::uint32_t prefill_chunk_, prefill_chunk_alone_, prefill_limit_;
  bool prefix_cache_;
  std::uint32_t max_running_;
  std::uint32_t sequence_limit_;
  PromptPace pace_;
  PagePool pool_;
  Grow grow_;
  bool grew_ = false;  // in this plan
  // Until this step the cache grows beyond its eager size, too, rather than forget pages.
  std::uint64_t eager_until_ = 0;
  std::uint64_t in_need_until_ =
      0;  // the step from which on the cache may grow for the prefix cache alone

  // Both in the order of arrival: the youngest is last.
  std::vector<Sequence*> running_;
  std::deque<Sequence*> waiting_;
  std::uint64_t arrivals_ = 0;

  // A ring: `planned_` steps from `oldest_` on, the first of which may be completed already.
  std::vector<Planned> records_;
  std::size_t oldest_ = 0, latest_ = 0;
  std::uint32_t planned_ = 0;
  bool completed_ = false;
  std::uint64_t completed_number_ = 0;
  std::uint64_t completed_turns_ = 0;
  // Pages of removed sequences, kept until step `after` has ended.
  struct Kept {
    PageList pages;
    std::uint64_t after = 0;
  };
  std::vector<Kept> kept_;
  StateBook states_;
  std::vector<StateSlot> held_;  // snapshots from which columns of the latest step continue

  std::vector<Sequence*> turn_;  // scratch of plan_prefill()
  Step step_;
  std::uint64_t step_number_ = 0;
  std::uint64_t turns_ = 0;
  FigureCounts counts_;
  // How many pages of both kinds were free when the scheduler last found that the first waiting sequence needs more.
  struct FreePages {
    std::uint32_t full = 0, windows = 0;
  };
  FreePages free_pages() const { return {pool_.free_pages(), pool_.windows().free_pages()}; }
  std::optional<FreePages> too_few_pages_;
  bool lacks_windows_ = false;  // a sequence of the last step lacked window pages
  PrefixFigures prefix_figures_;
};

}  // namespace bulkhead::engine
