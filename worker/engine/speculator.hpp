// Exact speculation: decides which guesses of coming tokens are worth a column of the next step.
//
// A step of a few columns takes little longer than one of a single column, because both read all weights. So if a
// sequence's next tokens can be guessed, the same step computes the guesses, too. Each position is sampled with its
// own draw, as it would be alone, and a guess is kept only if it is the token that was sampled
// (Scheduler::confirm()). So speculation changes no token, whatever the temperature; it only changes how many tokens
// a step gives.
//
// The speculator measures what is worth it:
//   - How often guesses are right. It compares the answer's tokens with what would have been guessed, even while
//     nothing is speculated. Each sequence has a probability for each number of right guesses in a row so far, because
//     a text that has repeated itself for long is likely to continue so.
//   - What steps take, by their number of columns, with drafts and without. Steps without drafts are measured again
//     now and then. So everything that makes columns expensive counts: the experts that further columns of a mixture
//     read, rows of logits that the host looks at, masks, a slow device.
//   - What the step after one with drafts loses, because it waits for the host; by the number of columns of the step
//     with drafts, so that a width that does not pay does not affect the others.
// The estimates for a width and the guesses' probabilities can be wrong. So gains and losses are counted as they
// occur, a step with drafts together with what the step after it loses. A loss is a debt that later steps pay back,
// 1 % of a step each. Until it is paid, only widths that have gained more than they lost get drafts. So drafts lose
// at most about 1 % plus the cost of one trial, whatever the device does. A step gets the number of drafts, the
// likeliest ones of all sequences, that gives the most tokens a second; it gets none unless that is kLeastGain times
// as many as without drafts. It gets no drafts that would delay a sequence either: each sequence is expected to get
// its tokens as fast as without drafts, or at most 2 % slower.
//
// A draft model (draft_model.hpp) is a second source, whose guesses take time of their own. The speculator asks it
// for sequences for which n-grams promise fewer tokens, while no step is in flight, because its guesses must follow
// the last token. Whether and for how many rounds to ask is decided as above, with the time of its rounds as a part
// of the step's; so that time is also part of the accounts of gains and losses. The time in which it reads a prompt
// is not, because it is part of what the prompt costs. If a device computes steps ahead, steps whose guesses the
// model makes are not planned ahead. A block of the model itself (multi-token prediction) guesses in the place of a
// draft model, and needs the hidden states of the tokens that the model generates.
//
// Text for which a constraint leaves no choice (forced_source.hpp) is guessed before everything else. It takes the
// device's time like other guesses, and is worth a column as often as its spelling is right.
//
// If layers carry states from position to position, each draft takes a slot of memory for the states after it
// (StateUse). There are only a few such slots (ExecutorLimits::max_drafts), and if there are none, nothing is guessed.
//
// Use it from one thread. Nothing allocates once there have been as many candidates as a step has drafts.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/engine/draft_model.hpp"
#include "worker/engine/draft_source.hpp"
#include "worker/engine/scheduler.hpp"

namespace bulkhead::engine {

enum class Speculation : std::uint8_t {
  kOff,
  kNgram,   // where it pays
  kAlways,  // wherever there is a guess; for tests
};

// What the speculator records about one sequence.
struct Drafting {
  std::unique_ptr<DraftSource> source;  // null: nothing is guessed
  std::unique_ptr<DraftSource>
      forced;                  // for text that a constraint may force; asked first; may be null
  float forced_chance = 0.9F;  // the probability that its next guess is right
  // The probability that a guess is right after this many right ones in a row; the last entry is for that many and
  // more.
  std::array<float, 8> chance{0.2F, 0.3F, 0.4F, 0.5F, 0.6F, 0.7F, 0.75F, 0.8F};
  std::uint32_t run = 0;  // right guesses in a row so far
  std::uint32_t drafted = 0, accepted = 0;
  // The guesses of tokens that steps in flight compute, followed by the drafts.
  std::array<TokenId, 8 + kMostDrafts> guesses{};

  // The draft model's data.
  DraftContext model;
  float model_chance =
      0;  // the probability that its guess is right if the guesses before it are right
  // Its latest guesses, for the tokens from index `model_from` on, as long as they have been right.
  std::array<TokenId, kMostDrafts> model_guesses{};
  std::uint32_t model_count = 0;
  std::size_t model_from = 0;
  bool by_model = false;  // whether the drafts of the step in flight are the model's
};

struct DraftedSequence : Sequence {
  Drafting drafting;
};

class Speculator {
 public:
  static constexpr double kLeastGain = 1.05;

  explicit Speculator(Speculation mode) : mode_(mode) {}
  bool on() const { return mode_ != Speculation::kOff; }

  // Sets the model that also guesses, or null; it must outlive this.
  void set_model(DraftModel* model) { model_ = model; }

  // Call it before the sequence generates: the source learns the tokens that it has so far.
  void start(DraftedSequence& sequence, std::unique_ptr<DraftSource> source) const;
  // Call it when a token was generated and appended. `hidden`: the hidden state from which it was chosen, if there is
  // one.
  void appended(DraftedSequence& sequence, std::span<const float> hidden);
  // Decides how many tokens the draft model should guess for the next step; 0: it should not be asked. If it should
  // be asked, no step may be in flight when ask_model() follows. Call it before each step is planned: it also decides
  // whether the step tells hidden states.
  std::uint32_t rounds_of_model(const Scheduler& scheduler);
  // Makes the draft model guess `rounds` tokens for each sequence that the last rounds_of_model() chose. A returned
  // error comes from the device.
  Status ask_model(std::uint32_t rounds,
                   const std::function<std::chrono::steady_clock::time_point()>& now);
  // Returns the time that the draft model took since the last step that only generates ended, or since
  // forget_model_time().
  std::chrono::nanoseconds model_time() const { return model_time_; }
  // Call it if the next step that ends does not only generate, or if there is no such step.
  void forget_model_time() { model_time_ = charged_ = {}; }
  // Gives sequences their drafts for Scheduler::plan(), which must be called next. All of the scheduler's sequences
  // must be DraftedSequences.
  void propose(const Scheduler& scheduler);

  // Reports that a step that only generates has ended. `took` is the time since the end of the step before it,
  // including the draft model's time.
  struct Ended {
    std::uint32_t own = 0;  // columns without drafts
    std::uint32_t drafts = 0;
    std::uint32_t tokens = 0;  // that sequences got from it
    std::chrono::nanoseconds took{0};
  };
  void ended(const Ended& step);

  // All since the start.
  struct Figures {
    std::uint64_t drafted = 0, accepted = 0;  // in tokens
    std::uint64_t steps = 0;                  // steps with drafts
    std::uint64_t model_drafted = 0,
                  model_accepted = 0;  // how many of those the draft model guessed
    double model_seconds = 0;          // the time that the draft model took
    double gained_seconds = 0;  // compared with steps without drafts, by what those took recently
  };
  const Figures& figures() const { return figures_; }
  // Reports that a draft of this sequence has been checked.
  void checked(DraftedSequence& sequence, bool right);

 private:
  // By what has been measured, no sequence gets its tokens slower by more than this factor so that others get more.
  static constexpr double kNearlyFree = 1.02;
  // A width that has earned nothing is tried only while no more steps without drafts than this are owed.
  static constexpr double kMayOwe = 0.5;

  struct Candidate {
    float chance = 0;
    DraftedSequence* sequence = nullptr;
  };
  // Seconds of steps, by the power of two that their columns fit; 0: unknown.
  using Costs = std::array<double, 12>;
  static constexpr std::uint32_t kMeasured = 4;
  struct Plain {
    double seconds = 0;
    std::uint32_t drafted = 0;      // steps with drafts since the last measured step without
    std::uint32_t due = kMeasured;  // steps to measure before the next step with drafts
  };
  static std::size_t place(std::uint32_t columns);
  // A sequence and the number of tokens that a step is expected to give it.
  struct Guessed {
    const DraftedSequence* sequence = nullptr;
    float tokens = 1;
  };
  double drafted_cost(std::uint32_t own, std::uint32_t drafts) const;
  std::size_t worthwhile(std::uint32_t own, std::size_t running);
  void forget(std::uint32_t own, std::size_t taken);
  void add_expected(const Candidate& candidate);
  double least_expected(std::size_t running) const;
  static void learn_plain(Plain& plain, double took);
  static void learn(double& cost, double took, double share);
  double lost_before(std::uint32_t columns, std::uint32_t before, double took, double plain) const;
  void lost_after_drafts(std::uint32_t columns, double lost, double plain);
  void settle(std::uint32_t columns, double gained);
  static bool learn_of_forced(Drafting& drafting, std::span<const TokenId> tokens);
  static float ngram_chance(const Drafting& drafting, std::size_t guess);
  static float ngram_tokens(Drafting& drafting, std::span<const TokenId> tokens);
  static float model_tokens(const Drafting& drafting, std::uint32_t guesses);
  void ask_for_hidden(const Scheduler& scheduler) const;
  static std::size_t take_from_model(const Drafting& drafting, std::size_t size,
                                     std::span<TokenId> guesses);
  void learn_of_model(Drafting& drafting, std::span<const TokenId> tokens);
  std::uint32_t best_rounds(std::uint32_t own, std::size_t running, std::uint32_t room) const;

  Speculation mode_;
  std::array<Plain, Costs{}.size()> plain_{};  // steps without drafts
  Costs drafted_{};
  // How much longer the step after one with drafts takes, by the columns of the step with drafts.
  Costs lost_after_{};
  std::uint32_t drafted_columns_ = 0;  // of the step that ended last; 0: it had no drafts
  bool all_have_drafts_ = false;  // whether all running sequences have drafts in the step in flight
  // The unit of the next three is a step without drafts.
  double gained_ =
      0;  // gain of the step with drafts that ended last, until the step after it has ended
  double owed_ = 0;  // what drafts have lost and later steps have not paid back yet
  std::array<double, Costs{}.size()> earned_{};  // what drafts gained, by their steps' columns
  std::vector<Candidate> candidates_;
  std::vector<Guessed> guessed_;
  DraftModel* model_ = nullptr;
  float model_chance_ = 0.6F;  // average of recent sequences, from which a new sequence starts
  Costs round_seconds_{};  // of the draft model's rounds, by their number of sequences; 0: unknown
  std::vector<DraftedSequence*> asking_;
  std::vector<DraftModel::Wanted> wanted_;
  // Since the last step that only generates ended: all time of the draft model, and the part of it that guessed.
  std::chrono::nanoseconds model_time_{0}, charged_{0};
  Figures figures_;
};

}  // namespace bulkhead::engine
