#include "worker/engine/draft_model.hpp"

#include <algorithm>
#include <cmath>

#include "config/base/log.hpp"

namespace bulkhead::engine {
namespace {

// A sequence that lacked pages asks for pages again after this many more tokens.
constexpr std::uint32_t kStarvedFor = 64;
// Steps that only read tokens take about this long, because streams wait for them.
constexpr std::chrono::milliseconds kReadTime{20};
constexpr std::uint32_t kLeastRead = 4, kFirstRead = 64, kMostRead = 256;
// In a round that guesses, the model reads at most this many tokens of a sequence: those of a step with drafts, and the
// next one.
constexpr std::uint32_t kReadByRound = kMostDrafts + 2;

bool device_failed(const Error& error) {
  return error.code() == ErrorCode::kDeviceLost || error.code() == ErrorCode::kDeadlineExceeded;
}

}  // namespace

void HiddenStates::add(std::uint32_t token, std::span<const float> state) {
  if (width_ != state.size()) {
    width_ = state.size();
    rows_.resize(kMost * width_);
  }
  if (token != end_) begin_ = token;
  end_ = token + 1;
  begin_ = std::max(begin_, end_ - std::min(end_, kMost));
  std::ranges::copy(state, rows_.begin() + static_cast<std::ptrdiff_t>(token % kMost * width_));
}

DraftModel::DraftModel(Executor& executor, std::uint32_t vocabulary)
    : executor_(executor),
      limits_(executor.limits()),
      vocabulary_(vocabulary),
      pool_(limits_,
            limits_.states > 0 || limits_.takes_hidden ? Sharing::kNone : Sharing::kPrefixes),
      states_(limits_.states),
      read_columns_(std::min(kFirstRead, limits_.max_columns)) {
  columns_.reserve(limits_.max_columns);
  hidden_.reserve(limits_.max_columns);
  tables_.reserve(limits_.max_sequences);
  windows_.reserve(limits_.max_sequences);
  uses_.reserve(limits_.max_sequences);
  members_.reserve(limits_.max_sequences);
}

// Says whether the model has all of the tokens. A sequence only grows, so each token is looked at once.
bool DraftModel::knows(DraftContext& context, std::span<const TokenId> tokens) const {
  while (context.known < tokens.size() && tokens[context.known] < limits_.vocabulary)
    ++context.known;
  return context.known == tokens.size();
}

// Begins again with the states that are there if the one that is needed next is not, or if the context is full.
void DraftModel::add_hidden(DraftContext& context, std::span<const TokenId> tokens,
                            std::span<const float> state) const {
  const auto last = static_cast<std::uint32_t>(tokens.size()) - 1;
  context.hidden.add(last, state);
  const std::uint32_t begin = context.hidden.begin();
  if (begin <= context.first + context.computed && context.first <= last &&
      last - context.first + 1 < limits_.context)
    return;
  empty(context);
  const std::uint32_t passed = begin - std::min(begin, context.first);
  context.starved_until -= std::min(context.starved_until, passed);
  context.first = begin;
  context.known = 0;
}

bool DraftModel::takes(DraftContext& context, std::span<const TokenId> tokens) const {
  if (off_ || tokens.size() >= limits_.context) return false;
  if (takes_hidden() && context.first + tokens.size() != context.hidden.end()) return false;
  if (knows(context, tokens)) return tokens.size() >= context.starved_until;
  empty(context);
  return false;
}

void DraftModel::empty(DraftContext& context) {
  context.pages.clear();
  context.states = {};
  context.computed = context.fed_count = 0;
}

double DraftModel::bytes() const {
  const auto counters = executor_.counters();
  const auto cache = std::ranges::find(counters, "kv_bytes", &FigureValue::name);
  return static_cast<double>(executor_.weight_bytes()) +
         (cache == counters.end() ? 0 : cache->value);
}

// Counts the tokens of right guesses as computed, and gives a new sequence the pages that the cache knows.
void DraftModel::begin(Wanted& wanted) {
  DraftContext& context = *wanted.context;
  wanted.count = 0;
  if (!knows(context, wanted.tokens)) return;
  const auto size = static_cast<std::uint32_t>(wanted.tokens.size());
  if (context.pages.pages().empty()) {
    context.pages = PageList(pool_);
    context.pages.reserve(std::min(size + kStarvedFor, limits_.context));
    context.fed_count = 0;
    context.computed = 0;
    if (limits_.states > 0 || takes_hidden()) return;
    context.pages.reuse(wanted.tokens.first(size - 1));
    context.computed = context.pages.shared_positions();
    return;
  }
  const std::uint32_t fed = std::exchange(context.fed_count, 0);
  if (limits_.states > 0 || takes_hidden()) return;
  std::uint32_t end = context.computed;
  for (std::uint32_t i = 0; i < fed && end + 1 < size; ++i, ++end) {
    if (context.fed[i] != wanted.tokens[end]) break;
  }
  computed_to(context, wanted.tokens, end);
}

// The positions below `end` hold what the sequence's own tokens give, and the steps that wrote them have ended.
void DraftModel::computed_to(DraftContext& context, std::span<const TokenId> tokens,
                             std::uint32_t end) {
  context.computed = end;
  context.pages.publish(tokens.first(end));
  if (pool_.windows().exists()) context.pages.slide(end, {});
}

// Gives the sequence's pages to others. The cache still knows the full ones for a while.
void DraftModel::starve(DraftContext& context, std::size_t tokens) {
  empty(context);
  context.starved_until = static_cast<std::uint32_t>(tokens) + kStarvedFor;
}

// Gets pages for this many positions, and slots for states if there are any. Returns false if there are too few of
// either.
bool DraftModel::cover(DraftContext& context, std::uint32_t positions) {
  if (limits_.states > 0 && !context.states) context.states = states_.lend();
  return (limits_.states == 0 || context.states) && context.pages.cover_all(positions);
}

// Returns the hidden state for a position of the sequence's own tokens.
std::span<const float> DraftModel::hidden_of(const DraftContext& context,
                                             std::uint32_t position) const {
  return takes_hidden() ? context.hidden.of(context.first + position) : std::span<const float>();
}

void DraftModel::add_column(const Column& column, std::span<const float> hidden) {
  columns_.push_back(column);
  if (takes_hidden()) hidden_.push_back(hidden);
}

void DraftModel::clear_step() {
  columns_.clear();
  hidden_.clear();
  tables_.clear();
  windows_.clear();
  uses_.clear();
}

void DraftModel::add_table(const DraftContext& context, StateUse use) {
  if (limits_.states > 0) uses_.push_back(use);
  tables_.push_back(context.pages.pages());
  if (pool_.windows().exists()) windows_.push_back(context.pages.windows());
}

Result<std::span<const ColumnOutput>> DraftModel::run_step() {
  Step step;
  step.columns = columns_;
  step.sequences = tables_;
  step.windows = windows_;
  step.states = uses_;
  step.hidden = hidden_;
  BULKHEAD_RETURN_IF_ERROR(executor_.submit(step));
  auto outputs = executor_.wait();
  // The step's states are undefined then. That is too rare for reading its sequences again to be worth the code.
  if (outputs.ok() && executor_.lost()) return Error(ErrorCode::kInternal, "a step was lost");
  return outputs;
}

// Reads tokens of sequences that lack too many tokens for a round. Returns false if there were no such sequences.
Result<bool> DraftModel::read(std::span<Wanted> wanted) {
  clear_step();
  ends_.assign(wanted.size(), 0);
  std::uint32_t room = std::min(read_columns_, limits_.max_columns);
  for (std::size_t i = 0; i < wanted.size() && room > 0; ++i) {
    DraftContext& context = *wanted[i].context;
    const auto size = static_cast<std::uint32_t>(wanted[i].tokens.size());
    if (size - context.computed <= kReadByRound || tables_.size() >= limits_.max_sequences ||
        !knows(context, wanted[i].tokens))
      continue;
    const std::uint32_t end = std::min(size - 1, context.computed + room);
    if (!cover(context, end)) {
      starve(context, size);
      continue;
    }
    const auto index = static_cast<std::uint32_t>(tables_.size());
    for (std::uint32_t position = context.computed; position < end; ++position)
      add_column({.token = wanted[i].tokens[position], .position = position, .sequence = index},
                 hidden_of(context, position));
    room -= end - context.computed;
    add_table(context, {context.states.kept(), context.states.kept()});
    ends_[i] = end;
  }
  if (columns_.empty()) return false;
  if (const auto outputs = run_step(); !outputs.ok()) return outputs.error();
  read_tokens_ += columns_.size();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (ends_[i] > 0) computed_to(*wanted[i].context, wanted[i].tokens, ends_[i]);
  }
  return true;
}

// Returns how many positions the rounds write, as far as the context has room.
std::uint32_t DraftModel::positions_for(const Wanted& wanted, std::uint32_t rounds) const {
  return std::min(static_cast<std::uint32_t>(wanted.tokens.size()) + rounds - 1, limits_.context);
}

// Chooses the sequences that have read enough and get pages for all rounds.
void DraftModel::choose_members(std::span<Wanted> wanted, std::uint32_t rounds) {
  members_.clear();
  std::uint32_t columns = 0;
  for (std::uint32_t i = 0; i < wanted.size(); ++i) {
    DraftContext& context = *wanted[i].context;
    const auto size = static_cast<std::uint32_t>(wanted[i].tokens.size());
    const std::uint32_t pending = size - context.computed;
    // If the sequence has no token that is new since the last round, there is nothing new to guess.
    if (pending == 0 || pending > kReadByRound || !takes(context, wanted[i].tokens)) continue;
    const bool room = columns + pending <= limits_.max_columns &&
                      members_.size() < std::min(limits_.max_sequences, limits_.max_outputs);
    if (!room) continue;
    if (!cover(context, positions_for(wanted[i], rounds))) {
      starve(context, size);
      continue;
    }
    columns += pending;
    members_.push_back(i);
  }
}

// The first round reads what the sequences have not read yet; each later one goes on with the guess before. Returns
// false if nobody is left.
Result<bool> DraftModel::run_round(std::span<Wanted> wanted, std::uint32_t round) {
  clear_step();
  std::erase_if(members_, [&](std::uint32_t member) {
    const Wanted& each = wanted[member];
    return each.count < round || each.count >= each.guesses.size() ||
           each.tokens.size() + round > limits_.context;
  });
  if (members_.empty()) return false;
  for (std::uint32_t index = 0; index < members_.size(); ++index) {
    const Wanted& each = wanted[members_[index]];
    DraftContext& context = *each.context;
    const auto size = static_cast<std::uint32_t>(each.tokens.size());
    Column column{.sequence = index};
    if (round == 0) {
      for (column.position = context.computed; column.position + 1 < size; ++column.position) {
        column.token = each.tokens[column.position];
        add_column(column, hidden_of(context, column.position));
      }
      read_tokens_ += size - context.computed;
    } else {
      context.fed[context.fed_count++] = each.guesses[round - 1];
    }
    column.position = size - 1 + round;
    column.token = round == 0 ? each.tokens.back() : each.guesses[round - 1];
    const bool draws = each.choice.temperature > 0 && limits_.sampled_top_k > 0;
    column.output = draws ? Output::kSampled : Output::kGreedy;
    if (draws) column.choice = &each.choice;
    column.tells_hidden = takes_hidden();
    add_column(column, round == 0 ? hidden_of(context, column.position) : context.latest);
    const StatePairs::Pair& states = context.states;
    add_table(context, {round > 1 ? states.ahead() : states.kept(),
                        round > 0 ? states.ahead() : states.kept()});
  }
  const auto outputs = run_step();
  if (!outputs.ok()) return outputs.error();
  for (const ColumnOutput& output : *outputs) {
    Wanted& each = wanted[members_[columns_[output.column].sequence]];
    if (round == 0)
      computed_to(*each.context, each.tokens, static_cast<std::uint32_t>(each.tokens.size()));
    if (!std::isfinite(output.best_logprob) ||
        output.best >= std::min(limits_.vocabulary, vocabulary_))
      continue;
    each.context->latest.assign(output.hidden.begin(), output.hidden.end());
    each.guesses[each.count++] = output.best;
  }
  return true;
}

Result<DraftModel::Times> DraftModel::guess(
    std::span<Wanted> wanted, std::uint32_t rounds,
    const std::function<std::chrono::steady_clock::time_point()>& now) {
  Times times;
  if (off_ || wanted.empty() || rounds == 0) return times;
  const auto compute = [&]() -> Status {
    const auto begin_time = now();
    for (Wanted& each : wanted) {
      // A top-k of the other model's whole vocabulary stands for all tokens of this one, too.
      each.choice.top_k =
          each.choice.top_k >= vocabulary_ ? 0 : std::min(each.choice.top_k, limits_.sampled_top_k);
      each.choice.first -= each.context->first;  // modulo 2^32, as Choice::first says
      begin(each);
    }
    BULKHEAD_TRY(const bool reads, read(wanted));
    const auto read_time = now();
    if (reads) {
      times.reading = read_time - begin_time;
      const std::uint32_t most = std::min(kMostRead, limits_.max_columns);
      if (times.reading > kReadTime) read_columns_ = std::max(read_columns_ / 2, kLeastRead);
      if (times.reading < kReadTime / 4) read_columns_ *= 2;
      read_columns_ = std::min(read_columns_, most);
    }
    choose_members(wanted, rounds);
    for (; times.rounds < rounds; ++times.rounds) {
      BULKHEAD_TRY(const bool guessed, run_round(wanted, times.rounds));
      if (!guessed) break;
    }
    times.guessing = now() - (reads ? read_time : begin_time);
    return {};
  };
  const Status computed = compute();
  if (computed.ok()) return times;
  const Error error = computed.error().within("the draft model");
  if (device_failed(error)) return error;
  spdlog::error("{}; it guesses nothing more", error.message());
  off_ = true;
  return times;
}

}  // namespace bulkhead::engine
