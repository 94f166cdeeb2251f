#include "worker/engine/speculator.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

namespace bulkhead::engine {
namespace {

constexpr float kLearning = 0.125F;  // weight of the newest sample in an average
// After this many steps with drafts, some steps without drafts measure again what those take.
constexpr std::uint32_t kMeasureAgain = 256;
constexpr double kLearningAgain = 0.5;
// The part of an estimate that is forgotten at each step that could have had drafts, so that a width that was slow
// once is tried again.
constexpr double kForgetting = 1.0 / 2048;
constexpr double kLeastSeconds = 1e-9;  // for a clock that stands still
constexpr float kLeastChance = 0.05F;   // a less likely guess is never worth a column
// The next two are in units of steps without drafts. Each step pays back this much of what drafts have lost. So
// drafts lose no more than this on average, and the sum of 2 % over 512 steps leaves room for what a first draft can
// cost.
constexpr double kPaidBack = 0.01;
// The largest debt and the largest earnings that an account keeps, in steps. The limit lets the account forget a
// pause of the machine, or many steps with gains. One step can gain kMostDrafts.
constexpr double kMostCounted = 16;

}  // namespace

void Speculator::start(DraftedSequence& sequence, std::unique_ptr<DraftSource> source) const {
  sequence.drafting.model_chance = model_chance_;
  sequence.drafting.source = std::move(source);
  sequence.drafting.source->advance(sequence.tokens);
  sequence.tells_hidden = model_ != nullptr && model_->takes_hidden();  // its first token
}

void Speculator::appended(DraftedSequence& sequence, std::span<const float> hidden) {
  Drafting& drafting = sequence.drafting;
  if (drafting.source == nullptr) return;
  const std::span<const TokenId> tokens = sequence.tokens;
  if (model_ != nullptr && !hidden.empty()) model_->add_hidden(drafting.model, tokens, hidden);
  if (model_ != nullptr) learn_of_model(drafting, tokens);
  if (learn_of_forced(drafting, tokens)) return drafting.source->advance(tokens);
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

// Says whether the constraint should have guessed the newest of the tokens.
bool Speculator::learn_of_forced(Drafting& drafting, std::span<const TokenId> tokens) {
  TokenId guess = 0;
  if (drafting.forced == nullptr ||
      drafting.forced->guess(tokens.first(tokens.size() - 1), {&guess, 1}) == 0)
    return false;
  const float right = guess == tokens.back() ? 1.0F : 0.0F;
  drafting.forced_chance += (right - drafting.forced_chance) * kLearning;
  return true;
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
    const std::span guesses = std::span(drafting.guesses).first(wanted);
    std::size_t count = 0;
    if (drafting.forced != nullptr) count = drafting.forced->guess(sequence.tokens, guesses);
    const bool forced = count > 0;
    if (!forced && ahead == 0) count = take_from_model(drafting, sequence.tokens.size(), guesses);
    drafting.by_model = !forced && count > 0;
    if (count == 0) count = drafting.source->guess(sequence.tokens, guesses);
    float chance = 1;
    for (std::size_t i = 0; i < count; ++i) {
      chance *= forced              ? drafting.forced_chance
                : drafting.by_model ? drafting.model_chance
                                    : ngram_chance(drafting, i);
      if (chance < least) break;
      if (i >= ahead) candidates_.push_back({chance, &sequence});
    }
  }
  // The chances of a sequence's drafts fall from one to the next, so any selection begins with the first draft.
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
  all_have_drafts_ =
      std::ranges::none_of(running, [](const Sequence* each) { return each->drafts.empty(); });
}

// Returns how many of the candidates, the likeliest first, give the most tokens a second and slow down none of the
// `running` sequences.
std::size_t Speculator::worthwhile(std::uint32_t own, std::size_t running) {
  if (own == 0 || candidates_.empty()) return 0;
  const Plain& plain = plain_[place(own)];
  if (plain.due > 0) return 0;
  double best = kLeastGain * own / plain.seconds, tokens = own;
  std::size_t count = 0;
  // If the step before had drafts, this step may lose time because of it. Nobody knows yet how much, so this step tries
  // a width without earnings only after a step without drafts.
  const bool may_try =
      owed_ <= kMayOwe && (drafted_columns_ == 0 || earned_[place(drafted_columns_)] > 0);
  guessed_.clear();
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    add_expected(candidates_[i]);
    tokens += candidates_[i].chance;
    const auto drafts = static_cast<std::uint32_t>(i) + 1;
    const std::size_t width = place(own + drafts);
    if (!may_try && earned_[width] <= 0) continue;
    const double cost = drafted_cost(own, drafts) + lost_after_[width];
    if (cost > kNearlyFree * plain.seconds * least_expected(running)) continue;
    const double rate = tokens / cost;
    if (rate <= best) continue;
    best = rate;
    count = i + 1;
  }
  forget(own, count);
  return count;
}

// Lets estimates of widths that were not taken decay, so that such a width is tried again some day, even while
// another one pays.
void Speculator::forget(std::uint32_t own, std::size_t taken) {
  for (std::size_t i = 0; i < lost_after_.size(); ++i) {
    if (taken == 0 || i != place(own + static_cast<std::uint32_t>(taken)))
      lost_after_[i] -= lost_after_[i] * kForgetting;
  }
  if (taken > 0) return;
  for (double& cost : drafted_)
    cost -= cost * kForgetting;
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

// Each sequence without a draft gets one token in the step, or waits for one.
double Speculator::least_expected(std::size_t running) const {
  if (guessed_.size() < running) return 1;
  return std::ranges::min(guessed_, {}, &Guessed::tokens).tokens;
}

std::size_t Speculator::place(std::uint32_t columns) {
  return std::min<std::size_t>(std::bit_width(columns - 1), Costs{}.size() - 1);
}

// Returns at least the time of a step without drafts. The first number of columns that has not been tried is expected
// to cost what the steps before it suggest; wider ones are not tried before that one.
double Speculator::drafted_cost(std::uint32_t own, std::uint32_t drafts) const {
  double before = plain_[place(own)].seconds, cost = std::max(before, drafted_[place(own)]);
  bool guessed = false;
  for (std::size_t i = place(own) + 1; i <= place(own + drafts); ++i) {
    if (guessed) return std::numeric_limits<double>::infinity();
    guessed = drafted_[i] == 0;
    // Twice the columns have twice the growth.
    const double next = guessed ? cost + 2 * (cost - before) : std::max(cost, drafted_[i]);
    before = std::exchange(cost, next);
  }
  return cost;
}

void Speculator::ended(const Ended& step) {
  const std::chrono::nanoseconds of_model = std::exchange(model_time_, {});
  const double asked = std::chrono::duration<double>(std::exchange(charged_, {})).count();
  if (!on() || step.own == 0) return;
  const double took =
      std::max(std::chrono::duration<double>(step.took - of_model).count(), kLeastSeconds);
  figures_.gained_seconds -= std::chrono::duration<double>(of_model).count();
  const std::uint32_t columns = step.own + step.drafts;
  const std::uint32_t before = std::exchange(drafted_columns_, step.drafts > 0 ? columns : 0);
  Plain& plain = plain_[place(step.own)];
  owed_ = std::max(0.0, owed_ - kPaidBack);
  if (step.drafts == 0) {
    if (asked > 0 && plain.seconds > 0) settle(step.own, -asked / plain.seconds);
    if (before > 0) return lost_after_drafts(before, took - plain.seconds, plain.seconds);
    return learn_plain(plain, took);
  }
  double lost = 0;
  if (before > 0) {
    lost = lost_before(columns, before, took, plain.seconds);
    lost_after_drafts(before, lost, plain.seconds);
  }
  const double own_time = took - lost;
  learn(drafted_[place(columns)], own_time, kLearning);
  if (++plain.drafted >= kMeasureAgain) plain = {plain.seconds, 0, kMeasured};
  ++figures_.steps;
  if (plain.seconds == 0) return;
  const double gained = static_cast<double>(step.tokens) / step.own - own_time / plain.seconds;
  figures_.gained_seconds += gained * plain.seconds;
  // A sequence without a draft has waited for one token.
  gained_ = (all_have_drafts_ ? gained : 1 - own_time / plain.seconds) - asked / plain.seconds;
}

// Returns the time that a step with drafts lost because it waited for the host: the time by which `took` exceeds the
// known time of a step of `columns` columns. The step before had drafts, too, and `before` columns.
double Speculator::lost_before(std::uint32_t columns, std::uint32_t before, double took,
                               double plain) const {
  const double known = drafted_[place(columns)], rest = took - std::max(known, plain);
  return std::max(0.0, known > 0 ? rest : std::min(rest, lost_after_[place(before)]));
}

// The fastest of the samples that are due counts: a step after a prompt's step, or the very first one, can be slow,
// and compared with a slow step all drafts seem to gain.
void Speculator::learn_plain(Plain& plain, double took) {
  plain.drafted = 0;
  if (plain.due == 0) return learn(plain.seconds, took, kLearning);
  plain.seconds = plain.due == kMeasured ? took : std::min(plain.seconds, took);
  --plain.due;
}

// A pause of the machine gets a small weight, because it is not what such steps take.
void Speculator::learn(double& cost, double took, double share) {
  cost = cost == 0 ? took : cost + (std::min(took, 4 * cost) - cost) * share;
}

// Notes that a step was not submitted ahead because the step before it had drafts, so the device waited `lost` for
// the host. `columns`: of the step with drafts. `plain`: the time of a step without drafts.
void Speculator::lost_after_drafts(std::uint32_t columns, double lost, double plain) {
  if (plain == 0) return;
  figures_.gained_seconds -= lost;
  settle(columns, std::exchange(gained_, 0) - lost / plain);
  double& known = lost_after_[place(columns)];
  lost = std::clamp(lost, 0.0, 4 * std::max(plain, known));
  known += (lost - known) * (lost > known ? kLearningAgain : kLearning);
}

// Settles a step with drafts once its own cost and its cost for the next step are known. `gained`: in steps without
// drafts; a negative value is a loss. A width pays its losses from its own earnings; all widths together owe the
// rest.
void Speculator::settle(std::uint32_t columns, double gained) {
  double& earned = earned_[place(columns)];
  earned = std::min(earned + gained, kMostCounted);
  if (earned >= 0) return;
  owed_ = std::min(owed_ - std::exchange(earned, 0), kMostCounted);
}

void Speculator::checked(DraftedSequence& sequence, bool right) {
  const std::uint64_t by_model = sequence.drafting.by_model ? 1 : 0;
  ++figures_.drafted;
  figures_.model_drafted += by_model;
  ++sequence.drafting.drafted;
  if (!right) return;
  ++figures_.accepted;
  figures_.model_accepted += by_model;
  ++sequence.drafting.accepted;
}

}  // namespace bulkhead::engine
