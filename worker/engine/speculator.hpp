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
//   - what the step behind one with drafts loses, because it waits for the host.
// A step gets the number of drafts, the likeliest ones of all sequences, that gives the most tokens a
// second; and none unless that is kLeastGain more than without. Nor does it get any that would keep a
// sequence waiting: each is expected to get its tokens as fast as without drafts, or 2 % slower.
//
// A device that can't compute a position again says so once for all (ExecutorLimits::max_drafts is 0
// for models whose layers carry a state from position to position), and nothing is speculated there.
//
// One thread. Nothing allocates once as many candidates as a step's drafts were there.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

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
  // That a guess is right after this many right ones in a row; the last is for as many and more.
  std::array<float, 8> chance{0.2F, 0.3F, 0.4F, 0.5F, 0.6F, 0.7F, 0.75F, 0.8F};
  std::uint32_t run = 0;  // right guesses in a row until now
  std::uint32_t drafted = 0, accepted = 0;
  // Tokens of steps in flight, which are guessed, too; then the drafts.
  std::array<TokenId, 8 + kMostDrafts> guesses{};
};

struct DraftedSequence : Sequence {
  Drafting drafting;
};

class Speculator {
 public:
  static constexpr double kLeastGain = 1.05;

  explicit Speculator(Speculation mode) : mode_(mode) {}
  bool on() const { return mode_ != Speculation::kOff; }

  // Before the sequence generates: what it has so far is known to the source from now on.
  static void start(DraftedSequence& sequence, std::unique_ptr<DraftSource> source);
  // A token was generated and appended.
  static void appended(DraftedSequence& sequence);
  // Gives sequences their drafts for Scheduler::plan(), which must be called next. All of the
  // scheduler's sequences must be DraftedSequences.
  void propose(const Scheduler& scheduler);

  // A step that only generates has ended. `took`: since the step before it ended.
  struct Ended {
    std::uint32_t own = 0;  // columns without drafts
    std::uint32_t drafts = 0;
    std::uint32_t tokens = 0;  // that sequences got of it
    std::chrono::nanoseconds took{0};
  };
  void ended(const Ended& step);

  // All since the start.
  struct Figures {
    std::uint64_t drafted = 0, accepted = 0;  // tokens
    std::uint64_t steps = 0;                  // with drafts
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
  struct Plain {
    double seconds = 0;
    std::uint32_t drafted = 0;  // steps with drafts since one without was measured
    std::uint32_t due = 1;      // steps to measure before the next with drafts
  };
  static std::size_t place(std::uint32_t columns);
  // A sequence and how many tokens a step is expected to give it.
  struct Guessed {
    const DraftedSequence* sequence = nullptr;
    float tokens = 1;
  };
  double drafted_cost(std::uint32_t own, std::uint32_t drafts) const;
  std::size_t worthwhile(std::uint32_t own, std::size_t running);
  void add_expected(const Candidate& candidate);
  double least_expected(std::size_t running) const;
  void lost_after_drafts(double took, double plain);

  Speculation mode_;
  std::array<Plain, Costs{}.size()> plain_{};  // without drafts
  Costs drafted_{};
  double lost_after_ = 0;      // seconds that a step behind one with drafts takes longer
  bool after_drafts_ = false;  // the step that ended last had some
  std::vector<Candidate> candidates_;
  std::vector<Guessed> guessed_;
  Figures figures_;
};

}  // namespace bulkhead::engine
