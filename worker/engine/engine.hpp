// The engine: requests go in, tokens come out. It combines the scheduler, an executor, the sampler, the text streams
// and the tokenizer's thread. It uses no channel and no Vulkan.
//
// The engine passes all its messages (ipc/messages.hpp) to one callback, in the order in which they may be sent. For
// each request that is first Accepted or Failed, then its tokens in TokenBatches, then Finished (or Failed).
//
// In a turn the engine plans and submits steps until as many are in flight as the executor allows. It does the host's
// work while the device computes, waits for the oldest step, takes that step's tokens and emits them. If the device
// passes tokens from step to step itself, the engine plans steps before it has the tokens of those in flight (see
// scheduler.hpp). It drops what the device computes for a request after the request's end.
//
// The engine collects tokens into records by these rules:
// - It sends a request's first token at once.
// - It sends later tokens when the request has `flush_tokens` of them, or when one has waited for `flush_interval`.
// - When it sends one request's tokens, it sends all waiting tokens with them.
// - It sends all waiting tokens when there is no step to run, and before a wait for the device that will probably
//   take longer than the interval, judged by the last steps.
//
// Draws count from 0 within the answer: token n uses draw n of the request's seed. A resumed request
// (accepted_tokens) continues with draw accepted_tokens.size().
//
// With speculation a step may give a sequence several tokens. The engine takes the outputs in the order of their
// columns, each as if it came from a step of its own, up to the first column whose guess was wrong.
//
// Call everything here from one thread. A turn that only generates allocates nothing, except for text that is longer
// than a small string.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "config/base/error.hpp"
#include "ipc/messages.hpp"
#include "worker/engine/executor.hpp"
#include "worker/engine/page_guard.hpp"
#include "worker/engine/preparer.hpp"
#include "worker/engine/sampler.hpp"
#include "worker/engine/scheduler.hpp"
#include "worker/engine/speculator.hpp"
#include "worker/engine/text_stream.hpp"

namespace bulkhead::engine {

using Clock = std::chrono::steady_clock;

enum class Pooling : std::uint8_t { kLast, kMean };

struct EngineOptions {
  SchedulerOptions scheduler;
  std::uint32_t flush_tokens = 1;
  std::chrono::microseconds flush_interval{2000};
  std::size_t max_message_bytes = SIZE_MAX;  // a larger answer is refused, a larger batch is split
  // The engine cuts prompts so that a step takes at most about this long, because other streams wait for the step,
  // and a heartbeat is due between steps.
  std::chrono::milliseconds longest_step{1000};
  Pooling pooling = Pooling::kLast;  // of embeddings
  Speculation speculation = Speculation::kOff;
  // For tests and benchmarks: makes the source that guesses a request's tokens. Empty: n-grams.
  std::function<std::unique_ptr<DraftSource>(std::span<const TokenId> prompt)> draft_source;
  // A model that guesses in addition; null: none. Tokens below both vocabularies' sizes must be the same ones. It must
  // outlive the engine, which alone submits steps to it.
  Executor* draft_model = nullptr;
  // The model's file recommends these values for samplers that requests leave open (Submit::open_samplers).
  std::vector<ipc::SamplingAdvice> sampler_advice = {};
  // The page guard compares all memory once in this time, beside the steps (page_guard.hpp); 0: never.
  std::chrono::seconds check_memory{0};
  // A slab of KV pages goes back to the device when fewer slabs have sufficed for this long; 0:
  // never.
  std::chrono::seconds keep_slabs{0};
  std::function<Clock::time_point()> now = Clock::now;
};

// Those of an engine's figures that can change while nothing is computed: slabs go back, the background finds memory
// that has changed, and pages of a dead process are adopted or settle.
struct MemoryFigures {
  struct OfKind {
    std::uint32_t present = 0, used = 0, cached = 0;  // pages
    bool operator==(const OfKind&) const = default;
  };
  OfKind full{}, windows{};
  std::uint32_t snapshots = 0;
  std::uint32_t left_out = 0;  // pages and slots that are never used again
  std::uint64_t damaged = 0;   // GuardFigures::damaged
  bool operator==(const MemoryFigures&) const = default;
};

class Engine {
 public:
  using Emit = std::function<void(const ipc::FromWorker&)>;

  // Everything that is passed by reference must outlive the engine. `emit` must not call the engine.
  Engine(Executor& executor, const Language& language, EngineOptions options, Emit emit);
  ~Engine();

  void submit(ipc::Submit submit);
  // Ends a request at any stage: sends Finished with kCancelled and frees the pages. Ignores an
  // unknown request.
  void cancel(RequestId request);
  // Answers with Embedded (or Failed), and nothing else.
  void embed(ipc::Embed job);
  // Answers with Ranked (or Failed), and nothing else.
  void rank(ipc::Rank job);
  // Answers with the question's Answer (or Failed), and nothing else.
  void answer(ipc::Question question);
  // Finishes the present requests, refuses new ones, and sends Drained once none is left.
  void drain();
  // set_ledger() sets where the KV cache records the pages that later requests can find by their tokens.
  // adopt() adopts the pages that a predecessor left, as far as they match their sums, before any
  // request comes; it returns how many it took. An error is the device's.
  void set_ledger(PageLedger* ledger) { guard_.set_ledger(ledger); }
  Result<std::uint32_t> adopt(std::span<const EnteredPage> pages);
  // Adopts the states after pages (state_book.hpp) that adopt() took, and compares them with their
  // sums first. Returns how many it took, and takes the others out of the ledger. An error is the device's.
  void set_state_ledger(StateLedger* ledger) { guard_.set_state_ledger(ledger); }
  Result<std::uint32_t> adopt_states(std::span<const EnteredState> states);
  std::uint32_t withhold(std::span<const PageIndex> pages) { return scheduler_.withhold(pages); }
  void settle() { scheduler_.settle(); }
  // Times a step's kernels as soon as no step is in flight; stats() reports the times from then on.
  void profile() { profile_wanted_ = true; }

  // Takes the results of the tokenizer's thread. turn() does so, too. wake_fd() is readable while
  // there are some.
  void poll();
  int wake_fd() const { return preparer_.wake_fd(); }

  // Ends one step if there is one to run or in flight, and returns true if it did. It calls `meanwhile` while the
  // device computes, once or more often; `meanwhile` may call submit(), cancel() and the like. A returned error comes
  // from the executor: the worker can't go on.
  Result<bool> turn(const std::function<void()>& meanwhile);

  // Returns the number of requests and jobs that have not got their last message.
  std::size_t outstanding() const { return requests_.size() + questions_.size(); }
  // Returns whether turn() would end a step, because something is to be computed or is being computed.
  bool runnable() const {
    return scheduler_.running() + scheduler_.waiting() + scheduler_.in_flight() > 0;
  }
  ipc::Stats stats() const;
  MemoryFigures memory_figures() const;
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  struct Request;
  using RequestPtr = std::unique_ptr<Request>;

  void prepared(Preparer::Outcome outcome);
  void answered(const Preparer::Outcome& outcome);
  // Why a request can't be computed. If `parameter` is empty, the field with the prompt is at fault.
  struct Refusal {
    ipc::FailureCode code;
    std::string message;
    const char* parameter = "";
  };
  // Returns the name of the request's field that the prompt comes from.
  static const char* prompt_field(const Request& request);
  std::optional<Refusal> refusal_of(const Request& request, std::span<const TokenId> prompt) const;
  void refuse(Request& request, Refusal refusal);
  // Call it when the prompt's tokens are known: checks the prompt, sends Accepted, and hands the
  // request to the scheduler.
  void start(Request& request, std::vector<TokenId> prompt, std::vector<std::string> warnings = {});
  // Returns the kind of output that the device must give for the next token.
  Output next_output(Request& request) const;
  bool draws_on_host(const Request& request) const;
  // Returns whether the request's steps may have outputs of kind kLogits.
  bool may_want_logits(const Request& request) const;
  Status reserve_rows(Request& request, std::uint32_t most_edits);
  bool logprobs_on_device(const Request& request) const;
  void resume(Request& request, std::span<const TokenId> accepted);
  // Makes a request that ends in what is made of hidden states; null after a refusal.
  Request* start_pooling(RequestId id);
  void take_hidden(Request& request, const ColumnOutput& output, std::uint32_t position);
  void send_pooled(Request& request);
  // Returns why the model can't generate, or an empty text if it can.
  std::string cant_generate() const;
  void truncate(std::vector<TokenId>& text) const;
  void begin_telling(Request& request);
  // Reports the prompt's token after `position`, with its log-probability from the logits there.
  void score_prompt(Request& request, const ColumnOutput& output, std::uint32_t position);
  void tell_prompt_token(Request& request, const Sampler::Logprobs& logprobs);
  Status submit_steps();
  Status plan_and_submit();
  Result<bool> ask_draft_model();
  Status look_at_memory(std::uint64_t step);
  bool grow_cache(std::uint32_t slab);
  std::vector<EnteredPage> present_of(std::span<const EnteredPage> pages) const;
  void give_slabs_back();
  struct SlabUse {
    // For each number of slabs of a kind of pages: when the pages in use last took that many.
    std::vector<Clock::time_point> needed_at;
    std::uint32_t most_pages_used = 0;  // since the last look at slabs
  };
  SlabUse& use_of(PageKind kind) { return slab_use_[static_cast<std::size_t>(kind)]; }
  std::uint32_t pages_used(PageKind kind) const;
  void note_slab_added(std::uint32_t slab, Clock::time_point now);
  void note_slabs_needed(PageKind kind, Clock::time_point now);
  void leave_out_states(std::span<const EnteredState> states);
  void mark_started();
  void make_masks();
  Status give_adjustments();
  // What an adjusted column gets.
  struct Adjusted {
    std::uint32_t column = 0;
    std::vector<std::uint32_t> mask;
    std::vector<LogitEdit> ahead;
  };
  void adjust(const Scheduler::Member& member, TokenId token, Adjusted& made);
  void write_mask(Request& request, Adjusted& made);
  bool allows_any(std::span<const std::uint32_t> mask) const;
  bool device_adjusts(const Request& request) const;
  bool drawn_under_its_mask(Request& request, std::uint32_t column) const;
  const char* mask_failure(std::uint32_t column) const;
  void handle_outputs(std::span<const ColumnOutput> outputs);
  void check_draft(Request& request, const ColumnOutput& output);
  void handle_output(Request& request, const ColumnOutput& output);
  void start_drafts(Request& request);
  bool compute_again(Request& request);
  Result<TokenId> sample(Request& request, std::span<const float> logits);
  void take_token(Request& request, TokenId token, std::span<const float> hidden);
  // Adds the token's text to what will be sent. Returns true if the answer ends with the token.
  bool read_token(Request& request, TokenId token, std::string& text,
                  std::vector<ipc::AnswerPart>& parts);
  void record_logprobs(Request& request, const ColumnOutput& output, TokenId token);
  ipc::TokenLogprob entry_of(TokenId token, const Sampler::Logprobs& logprobs) const;
  void finish(Request& request, ipc::FinishReason reason);
  void fail(RequestId request, ipc::FailureCode code, std::string message,
            std::string parameter = {});
  void drop(Request& request);

  bool flush_due(Clock::time_point now) const;
  // Adjusts, by a step's duration, how many columns of prompts the next steps may have.
  void pace_prefill(std::uint32_t columns, std::chrono::nanoseconds took);
  void flush_all();
  void emit_batch();
  void emit_finished();
  void say_drained();

  Executor& executor_;
  const Language& language_;
  EngineOptions options_;
  Emit emit_;
  Scheduler scheduler_;
  PageGuard guard_;
  std::array<SlabUse, std::size(kPageKinds)> slab_use_;
  // For each slab whose pages no sequence has any more: the last step that may still read them. 0: the
  // slab does not leave.
  std::vector<std::uint64_t> slabs_leave_after_;
  std::optional<Clock::time_point> refused_at_;  // when the device had no memory for a slab
  Clock::time_point slabs_looked_at_{};
  Sampler sampler_;
  std::unique_ptr<DraftModel>
      draft_model_;  // null: none; declared before requests_, which hold its pages
  Speculator speculator_;

  std::unordered_map<RequestId, RequestPtr> requests_;
  // Tickets that the tokenizer's thread works on: those of requests that generate, and of questions.
  std::unordered_map<std::uint64_t, RequestId> tickets_, questions_;
  std::uint64_t last_ticket_ = 0;

  std::vector<Request*> pending_;   // requests with tokens that were not sent
  std::vector<Request*> finished_;  // requests that have ended; their end follows their last tokens
  bool flush_now_ = false;          // a first token, a full batch or an end waits
  Clock::time_point oldest_pending_;
  ipc::FromWorker batch_ = ipc::TokenBatch{};  // reused, with its vectors, for every batch
  std::chrono::nanoseconds usual_step_{0};     // how long the device took recently

  // Facts of a step in flight, for the error message if it fails.
  struct StepFacts {
    std::uint32_t columns = 0, sequences = 0, drafts = 0;
    bool generates = false;                        // the step reads no prompt
    std::string name(std::uint64_t number) const;  // "step 12 (3 columns of 2 sequences)"
  };
  std::array<StepFacts, 16> step_facts_;  // more than can be in flight
  std::uint64_t steps_submitted_ = 0, steps_ended_ = 0;

  const Step* adjusted_step_ = nullptr;  // the step submitted last, if it waits for its adjustments
  std::vector<Adjusted> adjusted_;       // by rising columns; reused, with their vectors
  std::size_t adjusted_columns_ = 0;     // how many of them the step has
  std::vector<Adjustment> adjustments_;
  // Only for give_adjustments(): the guesses of a sequence so far, and the object that computes
  // their masks in advance.
  std::vector<TokenId> guesses_;
  std::unique_ptr<MasksAhead> masks_ahead_;
  // A column of a step in flight that has no mask, because none could be made. Its request fails.
  struct FailedMask {
    std::uint64_t step = 0;
    std::uint32_t column = 0;
    std::string why;
  };
  std::vector<FailedMask> failed_masks_;

  bool profile_wanted_ = false;
  bool draining_ = false;
  bool drained_ = false;  // Drained was sent
  FigureCounts counts_;
  std::uint64_t last_step_ = 0;  // the number of the step that ended last
  std::optional<Clock::time_point>
      step_ended_;  // when the last step ended, if there was more to compute
  std::chrono::nanoseconds device_time_{0};

  Preparer preparer_;  // the last member: its thread ends first
};

}  // namespace bulkhead::engine
