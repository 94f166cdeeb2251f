// Exact speculation: decides which guesses of coming tokens are worth a column of the next step.
//
// A step of a few columns takes little longer than one of a single column, because both read all
// weights. So a sequence whose next tokens can be guessed has the guesses computed in the same step.
// Each position is sampled with its own draw, as it would be alone, and a guess is kept only where it
// is the token that was sampled (Scheduler::confirm()). So speculation changes no token, whatever the
// temperature; it changes only how many a step gives.
//
// What is worth it is measured, not assumed:
//   - how often guesses are right: whatever the answer goes on with is compared with what would have
//     been guessed, also while nothing is speculated. Each sequence has a chance for each number of
//     right guesses in a row until now, since a text that has repeated itself for long goes on so;
//   - what steps take, by their number of columns, with drafts and without. Those without are measured
//     anew now and then. So whatever makes columns dear counts: the experts that further columns of a
//     mixture read, rows of logits that the host looks at, masks, a slow device;
//   - what the step behind one with drafts loses, because it waits for the host; by the number of
//     columns of the one with drafts, so that a width that does not pay leaves the others alone.
// A width's estimate can be wrong, and so can the guesses' chances. So gains and losses are counted as they
// come, a step with drafts together with what the step behind it loses. What is lost is a debt that later
// steps pay back, 1 % of a step each. Until it is paid, only widths that have earned more than they lost get
// drafts. So drafts lose about 1 % at most and the cost of one trial, whatever the device does.
// A step gets the number of drafts, the likeliest ones of all sequences, that gives the most tokens a
// second; and none unless that is kLeastGain more than without. Nor does it get any that would keep a
// sequence waiting: each is expected to get its tokens as fast as without drafts, or 2 % slower.
//
// A draft model (draft_model.hpp) is a second source, whose guesses take time of their own. It is asked for guesses of
// sequences for which n-grams promise fewer tokens, while no step is in flight, since its guesses follow the last
// token. Whether and for how many rounds it is asked is decided as above, with the time of its rounds as a part of the
// step's; so that time is a part of the accounts of gains and losses, too. The time in which it reads a prompt is not:
// that is a part of what the prompt costs. Where a device computes steps ahead, steps whose guesses the model makes are
// not planned ahead.
//
// What a constraint leaves no choice about (forced_source.hpp) is guessed before all else. It takes a device's time as
// other guesses do, and is worth a column as often as its spelling is right.
//
// A device that can't compute a position again says so once for all (ExecutorLimits::max_drafts is 0
// for models whose layers carry a state from position to position), and nothing is speculated there.
//
// One thread. Nothing allocates once as many candidates as a step's drafts were there.
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
  kAlways,  // wherever there is a guess, for tests
};

// What speculation knows of one sequence.
struct Drafting {
  std::unique_ptr<DraftSource> source;  // null: nothing is guessed
  std::unique_ptr<DraftSource>
      forced;                  // asked first, where a constraint may leave no choice; or null
  float forced_chance = 0.9F;  // that its next guess is right
  // That a guess is right after this many right ones in a row; the last is for as many and more.
  std::array<float, 8> chance{0.2F, 0.3F, 0.4F, 0.5F, 0.6F, 0.7F, 0.75F, 0.8F};
  std::uint32_t run = 0;  // right guesses in a row until now
  std::uint32_t drafted = 0, accepted = 0;
  // Tokens of steps in flight, which are guessed, too; then the drafts.
  std::array<TokenId, 8 + kMostDrafts> guesses{};

  // The draft model's part.
  DraftContext model;
  float model_chance = 0;  // that a guess of it is right behind right ones
  // Its latest guesses: those of the tokens from index `model_from` on, as far as they were right until now.
  std::array<TokenId, kMostDrafts> model_guesses{};
  std::uint32_t model_count = 0;
  std::size_t model_from = 0;
  bool by_model = false;  // the drafts of the step in flight
};

struct DraftedSequence : Sequence {
  Drafting drafting;
};

class Speculator {
 public:
  static constexpr double kLeastGain = 1.05;

  explicit Speculator(Speculation mode) : mode_(mode) {}
  bool on() const { return mode_ != Speculation::kOff; }

  // The model that guesses, too, or null; it must outlive this.
  void set_model(DraftModel* model) { model_ = model; }

  // Before the sequence generates: what it has so far is known to the source from now on.
  void start(DraftedSequence& sequence, std::unique_ptr<DraftSource> source) const;
  // A token was generated and appended.
  void appended(DraftedSequence& sequence);
  // Decides how many tokens the draft model should guess for the next step; 0: it should not be asked. If it should,
  // no step may be in flight when ask_model() follows.
  std::uint32_t rounds_of_model(const Scheduler& scheduler);
  // Has the draft model guess so many tokens of each sequence that the last rounds_of_model() chose. An error is the
  // device's.
  Status ask_model(std::uint32_t rounds,
                   const std::function<std::chrono::steady_clock::time_point()>& now);
  // The time that the draft model took since the last step that generates ended, or since forget_model_time().
  std::chrono::nanoseconds model_time() const { return model_time_; }
  // The next step that ends did not only generate, or there is none.
  void forget_model_time() { model_time_ = charged_ = {}; }
  // Gives sequences their drafts for Scheduler::plan(), which must be called next. All of the
  // scheduler's sequences must be DraftedSequences.
  void propose(const Scheduler& scheduler);

  // A step that only generates has ended. `took`: since the step before it ended, with the draft model's time.
  struct Ended {
    std::uint32_t own = 0;  // columns without drafts
    std::uint32_t drafts = 0;
    std::uint32_t tokens = 0;  // that sequences got of it
    std::chrono::nanoseconds took{0};
  };
  void ended(const Ended& step);

  // All since the start.
  struct Figures {
    std::uint64_t drafted = 0, accepted = 0;              // tokens
    std::uint64_t steps = 0;                              // with drafts
    std::uint64_t model_drafted = 0, model_accepted = 0;  // of those, the draft model's
    double model_seconds = 0;                             // that the draft model took
    double gained_seconds = 0;  // against steps without drafts, by what those took lately
  };
  const Figures& figures() const { return figures_; }
  // A draft of this sequence has been checked.
  void checked(DraftedSequence& sequence, bool right);

 private:
  struct Candidate {
    float chance = 0;
    DraftedSequence* sequence = nullptr;
  };
  // Of steps, by the power of two that their columns fit. Seconds; 0: not known.
  using Costs = std::array<double, 12>;
  static constexpr std::uint32_t kMeasured = 4;
  struct Plain {
    double seconds = 0;
    std::uint32_t drafted = 0;      // steps with drafts since one without was measured
    std::uint32_t due = kMeasured;  // steps to measure before the next with drafts
  };
  static std::size_t place(std::uint32_t columns);
  // A sequence and how many tokens a step is expected to give it.
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
  static std::size_t take_from_model(const Drafting& drafting, std::size_t size,
                                     std::span<TokenId> guesses);
  void learn_of_model(Drafting& drafting, std::span<const TokenId> tokens);
  std::uint32_t best_rounds(std::uint32_t own, std::size_t running, std::uint32_t room) const;

  Speculation mode_;
  std::array<Plain, Costs{}.size()> plain_{};  // without drafts
  Costs drafted_{};
  // That the step behind one with drafts takes longer, by the columns of the one with drafts.
  Costs lost_after_{};
  std::uint32_t drafted_columns_ = 0;  // of the step that ended last; 0: it had no drafts
  bool all_have_drafts_ = false;       // the running sequences, in the step with drafts in flight
  // The next three are in steps without drafts.
  double gained_ =
      0;             // by the step with drafts that ended last, until the step behind it has ended
  double owed_ = 0;  // what drafts have lost and later steps have not paid back yet
  std::array<double, Costs{}.size()> earned_{};  // what drafts gained, by their steps' columns
  std::vector<Candidate> candidates_;
  std::vector<Guessed> guessed_;
  DraftModel* model_ = nullptr;
  float model_chance_ = 0.6F;  // of sequences lately, where a new one begins
  Costs round_seconds_{};      // of the draft model's rounds, by their sequences; 0: not known
  std::vector<DraftedSequence*> asking_;
  std::vector<DraftModel::Wanted> wanted_;
  // Since the last step that generates ended: all time of the draft model, and the part of it that guessed.
  std::chrono::nanoseconds model_time_{0}, charged_{0};
  Figures figures_;
};

}  // namespace bulkhead::engine
