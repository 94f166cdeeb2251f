// The speculator's part that deals with a draft model.
#include <algorithm>

#include "worker/engine/speculator.hpp"

namespace bulkhead::engine {
namespace {

constexpr std::uint32_t kMostRounds = 8;  // guesses of the draft model for one sequence in one step
// The number of rounds for the setting `always`.
constexpr std::uint32_t kRoundsAlways = 4;
// The promises of a sequence's sources are compared over this many tokens.
constexpr std::uint32_t kCompared = 4;
constexpr float kLearningOfModel = 0.0625F, kLearningOfAll = 1.0F / 128;
// A sequence whose guesses were wrong is gradually treated like other sequences again.
constexpr float kForgettingChance = 1.0F / 256;
constexpr double kForgettingTime = 1.0 / 2048;

}  // namespace

float Speculator::ngram_chance(const Drafting& drafting, std::size_t guess) {
  return drafting.chance[std::min<std::size_t>(drafting.run + guess, drafting.chance.size() - 1)];
}

// Returns how many tokens n-grams promise besides the next step's own token.
float Speculator::ngram_tokens(Drafting& drafting, std::span<const TokenId> tokens) {
  const std::size_t count =
      drafting.source->guess(tokens, std::span(drafting.guesses).first(kCompared));
  float chance = 1, sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    chance *= ngram_chance(drafting, i);
    sum += chance;
  }
  return sum;
}

float Speculator::model_tokens(const Drafting& drafting, std::uint32_t guesses) {
  float chance = 1, sum = 0;
  for (std::uint32_t i = 0; i < guesses; ++i) {
    chance *= drafting.model_chance;
    sum += chance;
  }
  return sum;
}

// Copies the model's guesses if they are for the tokens after `size`. Returns how many there are.
std::size_t Speculator::take_from_model(const Drafting& drafting, std::size_t size,
                                        std::span<TokenId> guesses) {
  if (drafting.model_count == 0 || drafting.model_from != size) return 0;
  const std::size_t count = std::min<std::size_t>(drafting.model_count, guesses.size());
  std::copy_n(drafting.model_guesses.begin(), count, guesses.begin());
  return count;
}

// The last of `tokens` is the new one.
void Speculator::learn_of_model(Drafting& drafting, std::span<const TokenId> tokens) {
  const std::size_t at = tokens.size() - 1;
  if (drafting.model_count == 0 || at >= drafting.model_from + drafting.model_count) {
    drafting.model_chance += (model_chance_ - drafting.model_chance) * kForgettingChance;
    drafting.model_count = 0;
    return;
  }
  const bool right = drafting.model_guesses[at - drafting.model_from] == tokens.back();
  const float sample = right ? 1.0F : 0.0F;
  drafting.model_chance += (sample - drafting.model_chance) * kLearningOfModel;
  model_chance_ += (sample - model_chance_) * kLearningOfAll;
  if (!right) drafting.model_count = 0;
}

// Makes steps tell hidden states while the block can guess for all running sequences. With more sequences the block
// does not guess, so it would not read the hidden states.
void Speculator::ask_for_hidden(const Scheduler& scheduler) const {
  const std::span<Sequence* const> running = scheduler.running_sequences();
  const bool serves = model_->takes_hidden() && model_->serves(running.size());
  for (Sequence* const each : running) {
    auto& sequence = static_cast<DraftedSequence&>(*each);
    sequence.tells_hidden = serves && sequence.drafting.source != nullptr;
  }
}

std::uint32_t Speculator::rounds_of_model(const Scheduler& scheduler) {
  asking_.clear();
  if (model_ == nullptr || !on()) return 0;
  ask_for_hidden(scheduler);
  const std::uint32_t room = scheduler.draft_room();
  if (room == 0) return 0;
  std::uint32_t own = 0;
  const std::span<Sequence* const> running = scheduler.running_sequences();
  for (Sequence* const each : running) {
    if (!scheduler.generates_next(*each)) continue;
    ++own;
    auto& sequence = static_cast<DraftedSequence&>(*each);
    Drafting& drafting = sequence.drafting;
    if (drafting.source == nullptr ||
        !model_->takes(drafting.model, model_->seen(drafting.model, sequence.tokens)))
      continue;
    // Nothing follows the last token of an answer.
    if (sequence.length() + 1 >= sequence.most_tokens) continue;
    if (ngram_tokens(drafting, sequence.tokens) >= model_tokens(drafting, kCompared)) continue;
    asking_.push_back(&sequence);
  }
  if (asking_.empty() || asking_.size() > room) return 0;
  if (mode_ == Speculation::kAlways) {
    return std::min(kRoundsAlways, room / static_cast<std::uint32_t>(asking_.size()));
  }
  const std::uint32_t rounds = best_rounds(own, running.size(), room);
  if (rounds == 0) {
    for (double& seconds : round_seconds_)
      seconds -= seconds * kForgettingTime;
  }
  return rounds;
}

// Like worthwhile() for a step's drafts, but it also counts the draft model's time.
std::uint32_t Speculator::best_rounds(std::uint32_t own, std::size_t running,
                                      std::uint32_t room) const {
  const Plain& plain = plain_[place(own)];
  if (plain.due > 0 || plain.seconds == 0) return 0;
  const auto asking = static_cast<std::uint32_t>(asking_.size());
  const bool may_try =
      owed_ <= kMayOwe && (drafted_columns_ == 0 || earned_[place(drafted_columns_)] > 0);
  double best = kLeastGain * own / plain.seconds;
  std::uint32_t rounds = 0;
  for (std::uint32_t k = 1; k <= std::min(kMostRounds, room / asking); ++k) {
    const std::size_t width = place(own + k * asking);
    if (!may_try && earned_[width] <= 0) continue;
    double tokens = own, least = kMostDrafts + 1;
    for (const DraftedSequence* sequence : asking_) {
      const double more = model_tokens(sequence->drafting, k);
      tokens += more;
      least = std::min(least, 1 + more);
    }
    if (asking < running) least = 1;
    const double cost =
        drafted_cost(own, k * asking) + lost_after_[width] + k * round_seconds_[place(asking)];
    if (cost > kNearlyFree * plain.seconds * least) continue;
    if (tokens / cost <= best) continue;
    best = tokens / cost;
    rounds = k;
  }
  return rounds;
}

Status Speculator::ask_model(std::uint32_t rounds,
                             const std::function<std::chrono::steady_clock::time_point()>& now) {
  wanted_.clear();
  for (DraftedSequence* const sequence : asking_) {
    Drafting& drafting = sequence->drafting;
    drafting.model_count = 0;
    drafting.model_from = sequence->tokens.size();
    wanted_.push_back({.context = &drafting.model,
                       .tokens = model_->seen(drafting.model, sequence->tokens),
                       .choice = sequence->choice,
                       .guesses = drafting.model_guesses});
  }
  BULKHEAD_TRY(const DraftModel::Times times, model_->guess(wanted_, rounds, now));
  std::size_t guessing = 0;
  for (std::size_t i = 0; i < asking_.size(); ++i) {
    asking_[i]->drafting.model_count = wanted_[i].count;
    if (wanted_[i].count > 0) ++guessing;
  }
  model_time_ += times.reading + times.guessing;
  charged_ += times.guessing;
  figures_.model_seconds += std::chrono::duration<double>(times.reading + times.guessing).count();
  if (guessing > 0 && times.rounds > 0) {
    const double round = std::chrono::duration<double>(times.guessing).count() / times.rounds;
    learn(round_seconds_[place(static_cast<std::uint32_t>(guessing))], std::max(round, 1e-9),
          kLearningOfModel);
  }
  return {};
}

}  // namespace bulkhead::engine
