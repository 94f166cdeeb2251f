#include "worker/engine/speculator.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

namespace bulkhead::engine {
namespace {

constexpr float kLearning = 0.125F;  // share of the newest sample in an average
// After so many steps with drafts, so many without show anew what those take.
constexpr std::uint32_t kMeasureAgain = 256, kMeasured = 4;
constexpr double kLearningAgain = 0.5;
// Of an estimate, at each step that could have had drafts: what was dear once is tried again.
constexpr double kForgetting = 1.0 / 2048;
constexpr double kLeastSeconds = 1e-9;  // a clock that stands still
constexpr float kLeastChance = 0.05F;   // a guess that is less likely is never worth a column
// No sequence gets its tokens slower than this, by what is measured, so that others get more.
constexpr double kNearlyFree = 1.02;

}  // namespace

void Speculator::start(DraftedSequence& sequence, std::unique_ptr<DraftSource> source) {
  sequence.drafting.source = std::move(source);
  sequence.drafting.source->advance(sequence.tokens);
}

void Speculator::appended(DraftedSequence& sequence) {
  Drafting& drafting = sequence.drafting;
  if (drafting.source == nullptr) return;
  const std::span<const TokenId> tokens = sequence.tokens;
  TokenId guess = 0;
  if (drafting.source->guess(tokens.first(tokens.size() - 1), {&guess, 1}) == 1) {
    const bool right = guess == tokens.back();
    float& chance =
        drafting.chance[std::min<std::size_t>(drafting.run, drafting.chance.size() - 1)];
    chance += ((right ? 1.0F : 0.0F) - chance) * kLearning;
    drafting.run = right ? drafting.run + 1 : 0;
  } else {
    drafting.run = 0;
  }
  drafting.source->advance(tokens);
}

void Speculator::propose(const Scheduler& scheduler) {
  if (!on()) return;
  const std::uint32_t room = scheduler.draft_room();
  if (room == 0) return;
  candidates_.clear();
  std::uint32_t own = 0;
  const std::span<Sequence* const> running = scheduler.running_sequences();
  const float least = mode_ == Speculation::kNgram ? kLeastChance : 0;
  for (Sequence* const each : running) {
    each->drafts = {};
    if (!scheduler.generates_next(*each)) continue;
    ++own;
    auto& sequence = static_cast<DraftedSequence&>(*each);
    Drafting& drafting = sequence.drafting;
    const std::size_t ahead = sequence.unknown;
    if (drafting.source == nullptr || ahead + kMostDrafts > drafting.guesses.size()) continue;
    const std::size_t wanted = ahead + std::min(room, kMostDrafts);
    const std::size_t count =
        drafting.source->guess(sequence.tokens, std::span(drafting.guesses).first(wanted));
    float chance = 1;
    for (std::size_t i = 0; i < count; ++i) {
      chance *=
          drafting.chance[std::min<std::size_t>(drafting.run + i, drafting.chance.size() - 1)];
      if (chance < least) break;
      if (i >= ahead) candidates_.push_back({chance, &sequence});
    }
  }
  // Chances fall along a sequence, so whatever is taken of one begins with its first draft.
  const std::size_t most = std::min<std::size_t>(candidates_.size(), room);
  std::ranges::partial_sort(candidates_, candidates_.begin() + static_cast<std::ptrdiff_t>(most),
                            std::greater(), &Candidate::chance);
  candidates_.resize(most);
  if (mode_ == Speculation::kNgram) candidates_.resize(worthwhile(own, running.size()));
  for (const Candidate& taken : candidates_) {
    DraftedSequence& sequence = *taken.sequence;
    sequence.drafts =
        std::span(sequence.drafting.guesses).subspan(sequence.unknown, sequence.drafts.size() + 1);
  }
}

// How many of the candidates, the likeliest, give the most tokens a second and take none from any of
// the `running` sequences.
std::size_t Speculator::worthwhile(std::uint32_t own, std::size_t running) {
  if (own == 0 || candidates_.empty()) return 0;
  const Plain& plain = plain_[place(own)];
  if (plain.due > 0) return 0;
  double best = kLeastGain * own / plain.seconds, tokens = own;
  std::size_t count = 0;
  guessed_.clear();
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    add_expected(candidates_[i]);
    tokens += candidates_[i].chance;
    const double cost = drafted_cost(own, static_cast<std::uint32_t>(i) + 1) + lost_after_;
    if (cost > kNearlyFree * plain.seconds * least_expected(running)) continue;
    const double rate = tokens / cost;
    if (rate <= best) continue;
    best = rate;
    count = i + 1;
  }
  if (count == 0) {
    lost_after_ -= lost_after_ * kForgetting;
    for (double& cost : drafted_)
      cost -= cost * kForgetting;
  }
  return count;
}

void Speculator::add_expected(const Candidate& candidate) {
  const auto is_it = [&](const Guessed& guessed) { return guessed.sequence == candidate.sequence; };
  const auto known = std::ranges::find_if(guessed_, is_it);
  if (known == guessed_.end()) {
    guessed_.push_back({candidate.sequence, 1 + candidate.chance});
  } else {
    known->tokens += candidate.chance;
  }
}

// A sequence without a draft gets one token of the step, or waits for it.
double Speculator::least_expected(std::size_t running) const {
  if (guessed_.size() < running) return 1;
  return std::ranges::min(guessed_, {}, &Guessed::tokens).tokens;
}

std::size_t Speculator::place(std::uint32_t columns) {
  return std::min<std::size_t>(std::bit_width(columns - 1), Costs{}.size() - 1);
}

// Never less than without drafts. The first number of columns that has not been tried is taken to cost
// what the steps before it promise; wider ones wait for that to be tried.
double Speculator::drafted_cost(std::uint32_t own, std::uint32_t drafts) const {
  double before = plain_[place(own)].seconds, cost = std::max(before, drafted_[place(own)]);
  bool guessed = false;
  for (std::size_t i = place(own) + 1; i <= place(own + drafts); ++i) {
    if (guessed) return std::numeric_limits<double>::infinity();
    guessed = drafted_[i] == 0;
    // Twice the columns, twice the growth.
    const double next = guessed ? cost + 2 * (cost - before) : std::max(cost, drafted_[i]);
    before = std::exchange(cost, next);
  }
  return cost;
}

void Speculator::ended(const Ended& step) {
  if (!on() || step.own == 0) return;
  const double took = std::max(std::chrono::duration<double>(step.took).count(), kLeastSeconds);
  // A pause of the machine counts a little, not as what such steps take.
  const auto learn = [took](double& cost, double share) {
    cost = cost == 0 ? took : cost + (std::min(took, 4 * cost) - cost) * share;
  };
  const bool after_drafts = std::exchange(after_drafts_, step.drafts > 0);
  Plain& plain = plain_[place(step.own)];
  if (step.drafts == 0) {
    if (after_drafts) return lost_after_drafts(took, plain.seconds);
    learn(plain.seconds, plain.due > 0 ? kLearningAgain : kLearning);
    plain.due -= plain.due > 0 ? 1 : 0;
    plain.drafted = 0;
    return;
  }
  learn(drafted_[place(step.own + step.drafts)], kLearning);
  if (++plain.drafted >= kMeasureAgain) plain = {plain.seconds, 0, kMeasured};
  ++figures_.steps;
  if (plain.seconds > 0) figures_.gained_seconds += step.tokens * plain.seconds / step.own - took;
}

// Such a step was not submitted ahead, as others without drafts are.
void Speculator::lost_after_drafts(double took, double plain) {
  if (plain == 0) return;
  figures_.gained_seconds += plain - took;
  const double lost = std::clamp(took - plain, 0.0, 4 * plain);
  lost_after_ += (lost - lost_after_) * (lost > lost_after_ ? kLearningAgain : kLearning);
}

void Speculator::checked(DraftedSequence& sequence, bool right) {
  ++figures_.drafted;
  ++sequence.drafting.drafted;
  if (!right) return;
  ++figures_.accepted;
  ++sequence.drafting.accepted;
}

}  // namespace bulkhead::engine
