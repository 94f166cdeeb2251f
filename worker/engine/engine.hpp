// The engine: requests in, tokens out. Ties the scheduler, an executor, the sampler, text and the
// tokenizer's thread together; knows no channel and no Vulkan.
//
// Everything it has to say goes to one callback as the messages of ipc/messages.hpp, in the order
// in which they may be sent: for each request first Accepted or Failed, then its tokens in
// TokenBatches, then Finished (or Failed).
//
// A turn is: plan and submit steps until as many are in flight as the executor takes, do the host's
// work while the device computes, wait for the oldest, take its tokens, emit. Steps are planned
// before the tokens of those in flight are known, where the device itself hands them on (see
// scheduler.hpp); what it computes for a request past that one's end is dropped. Tokens of a
// request are put together in one record by these rules: the first at once; later ones when
// `flush_tokens` of a request are there or one has waited `flush_interval`; all that wait go when
// one goes. Before a wait for the device that will outlast the interval (judged by the last steps)
// what waits is sent, and when there is no step to run.
//
// Positions that are sampled are counted from 0 within the answer: token n is draw n of the
// request's seed. A resumed request (accepted_tokens) goes on with draw accepted_tokens.size().
//
// With speculation a step may give a sequence several tokens: outputs are taken in the order of their
// columns, each as if it came from a step of its own, until one's column was a wrong guess.
//
// One thread calls everything here. No allocation in a turn that only generates, but for text
// longer than a small string.
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
  std::size_t max_message_bytes =
      SIZE_MAX;  // an answer that encodes to more is refused, a batch is split
  // Prompts are cut so that a step takes about so long at most: other streams wait for it, and what
  // watches the worker's heart sees a beat in between.
  std::chrono::milliseconds longest_step{1000};
  Pooling pooling = Pooling::kLast;  // of embeddings
  Speculation speculation = Speculation::kOff;
  // For tests and benchmarks: what guesses a request's tokens; empty: n-grams.
  std::function<std::unique_ptr<DraftSource>(std::span<const TokenId> prompt)> draft_source;
  // A model that guesses besides; null: none. It has the same vocabulary, no states, and must outlive the engine, which
  // alone submits steps to it.
  Executor* draft_model = nullptr;
  // The time in which the background compares all memory once (page_guard.hpp); 0: never.
  std::chrono::seconds check_memory{0};
  std::function<Clock::time_point()> now = Clock::now;
};

class Engine {
 public:
  using Emit = std::function<void(const ipc::FromWorker&)>;

  // All referenced things must outlive the engine. `emit` must not call the engine.
  Engine(Executor& executor, const Language& language, EngineOptions options, Emit emit);
  ~Engine();

  void submit(ipc::Submit submit);
  // Ends a request wherever it is: Finished with kCancelled, and its pages are free. An unknown one
  // is ignored.
  void cancel(RequestId request);
  // Answers with Embedded (or Failed), and nothing else.
  void embed(ipc::Embed job);
  // Answers with the question's Answer (or Failed), and nothing else.
  void answer(ipc::Question question);
  // Lets what is there finish, refuses what comes, and says Drained once when nothing is left.
  void drain();
  // Who keeps account of the KV pages that can be found by their tokens (kv_cache.hpp); and pages
  // that are to be found from the start, while no request has come: those that hold what their sums
  // say. How many of these were taken. An error is the device's.
  void set_ledger(PageLedger* ledger) { guard_.set_ledger(ledger); }
  Result<std::uint32_t> take_over(std::span<const KeptPage> pages);
  // Takes over the states behind pages (state_book.hpp) that take_over() took, and compares them with their
  // sums first. Returns how many it took; the ledger hears that the others are no more. An error is the device's.
  void set_state_ledger(StateLedger* ledger) { guard_.set_state_ledger(ledger); }
  Result<std::uint32_t> take_over_states(std::span<const KeptState> states);
  std::uint32_t withhold(std::span<const PageIndex> pages) { return scheduler_.withhold(pages); }
  void settle() { scheduler_.settle(); }
  // Times a step's kernels as soon as no step is in flight; stats() tells from then on.
  void profile() { profile_wanted_ = true; }

  // Takes what the tokenizer's thread has done. turn() does so, too; wake_fd() tells when.
  void poll();
  int wake_fd() const { return preparer_.wake_fd(); }

  // Ends one step if there is one to run or in flight: true. `meanwhile` is called once while the
  // device computes and may call submit(), cancel() and the like. An error is the executor's: the
  // worker can't go on.
  Result<bool> turn(const std::function<void()>& meanwhile);

  // Requests and jobs that have not got their last message.
  std::size_t outstanding() const { return requests_.size() + questions_.size(); }
  // Something to compute, or being computed: turn() would end a step.
  bool runnable() const {
    return scheduler_.running() + scheduler_.waiting() + scheduler_.in_flight() > 0;
  }
  ipc::Stats stats() const;
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  struct Request;
  using RequestPtr = std::unique_ptr<Request>;

  void prepared(Preparer::Outcome outcome);
  void answered(const Preparer::Outcome& outcome);
  // Why a request can't be computed. An empty parameter stands for the one that the prompt came in.
  struct Refusal {
    ipc::FailureCode code;
    std::string message;
    const char* parameter = "";
  };
  std::optional<Refusal> refusal_of(const Request& request, std::span<const TokenId> prompt) const;
  void refuse(Request& request, Refusal refusal);
  // The prompt's tokens are known: checks it, says Accepted, hands it to the scheduler.
  void start(Request& request, std::vector<TokenId> prompt, std::vector<std::string> warnings = {});
  // What the next token asks of the device.
  Output next_output(Request& request) const;
  bool draws_on_host(const Request& request) const;
  // Says whether the request's steps may have outputs of kind kLogits.
  bool may_want_logits(const Request& request) const;
  Status reserve_logits(const Request& request);
  bool logprobs_on_device(const Request& request) const;
  void resume(Request& request, std::span<const TokenId> accepted);
  void take_hidden(Request& request, const ColumnOutput& output, std::uint32_t position);
  void begin_telling(Request& request);
  // The prompt's token behind `position`, by the logits there.
  void score_prompt(Request& request, const ColumnOutput& output, std::uint32_t position);
  void tell_prompt_token(Request& request, const Sampler::Logprobs& logprobs);
  Status submit_steps();
  Result<bool> ask_draft_model();
  Status look_at_memory(std::uint64_t step);
  void leave_out_states(std::span<const KeptState> states);
  void mark_started();
  void make_masks();
  void handle_outputs(std::span<const ColumnOutput> outputs);
  void check_draft(Request& request, const ColumnOutput& output);
  void handle_output(Request& request, const ColumnOutput& output);
  void start_drafts(Request& request);
  bool compute_again(Request& request);
  Result<TokenId> sample(Request& request, std::span<const float> logits);
  void take_token(Request& request, TokenId token);
  // The token's text goes where it is to be sent. True: the answer ends with it.
  bool read_token(Request& request, TokenId token, std::string& text,
                  std::vector<ipc::AnswerPart>& parts);
  void record_logprobs(Request& request, const ColumnOutput& output, TokenId token);
  ipc::TokenLogprob entry_of(TokenId token, const Sampler::Logprobs& logprobs) const;
  void finish(Request& request, ipc::FinishReason reason);
  void fail(RequestId request, ipc::FailureCode code, std::string message,
            std::string parameter = {});
  void drop(Request& request);

  bool flush_due(Clock::time_point now) const;
  // Learns from a step how many columns of prompts the next ones may have.
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
  Sampler sampler_;
  std::unique_ptr<DraftModel> draft_model_;  // null: none; before requests_, which have its pages
  Speculator speculator_;

  std::unordered_map<RequestId, RequestPtr> requests_;
  // Tickets that the tokenizer's thread works on: those of requests that generate, and of questions.
  std::unordered_map<std::uint64_t, RequestId> tickets_, questions_;
  std::uint64_t last_ticket_ = 0;

  std::vector<Request*> pending_;   // have tokens that were not sent
  std::vector<Request*> finished_;  // done; told after their last tokens
  bool flush_now_ = false;          // a first token, a full lot or an end is among the pending
  Clock::time_point oldest_pending_;
  ipc::FromWorker batch_ = ipc::TokenBatch{};  // its vectors are used again and again
  std::chrono::nanoseconds usual_step_{0};     // how long the device took lately

  // Of the steps in flight, for the error that one may end in.
  struct StepFacts {
    std::uint32_t columns = 0, sequences = 0, drafts = 0;
    bool generates = false;                        // and nothing else
    std::string name(std::uint64_t number) const;  // "step 12 (3 columns of 2 sequences)"
  };
  std::array<StepFacts, 8> step_facts_;  // more than are ever in flight
  std::uint64_t steps_submitted_ = 0, steps_ended_ = 0;

  bool profile_wanted_ = false;
  bool draining_ = false;
  bool drained_ = false;  // and said so
  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t generated_tokens_ = 0;
  std::uint64_t resumed_requests_ = 0;
  std::uint64_t draws_below_accepted_ = 0;
  std::uint64_t batches_ = 0;
  std::uint64_t last_step_ = 0;                // the number of the step that ended last
  std::uint64_t steps_ahead_ = 0;              // submitted while another was in flight
  std::uint64_t requests_computed_again_ = 0;  // since something of theirs was spoilt
  std::uint64_t nonfinite_outputs_ = 0;
  std::uint64_t discarded_outputs_ = 0;          // of requests that had ended
  std::optional<Clock::time_point> step_ended_;  // the last one, if there was more to compute
  std::uint64_t step_columns_ = 0;
  std::chrono::nanoseconds device_time_{0};

  Preparer preparer_;  // last: its thread ends before the rest goes
};

}  // namespace bulkhead::engine
