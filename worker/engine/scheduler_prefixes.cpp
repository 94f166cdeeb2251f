// The scheduler's part that deals with the prefix cache (scheduler.hpp, "Prefixes"): which pages of other
// sequences a sequence reuses, and which sequence it waits for.
#include <algorithm>

#include "worker/engine/scheduler.hpp"

namespace bulkhead::engine {
namespace {

// To compute fewer pages than this takes no longer than to write a snapshot.
constexpr std::uint32_t kPagesWorthSaving = 2;

}  // namespace

// Says whether the sequence looks for pages in the prefix cache at all.
bool Scheduler::shares_pages(const Sequence& sequence) const {
  return prefix_cache_ && !sequence.alone && sequence.prompt_output == Output::kNone;
}

std::span<const TokenId> Scheduler::all_but_last(const Sequence& sequence) {
  return std::span(sequence.tokens).first(sequence.tokens.size() - 1);
}

void Scheduler::go_on_after_shared(Sequence& sequence) {
  const std::uint32_t positions = sequence.pages.shared_positions();
  const std::uint32_t found = positions - sequence.computed;
  prefix_figures_.hit_tokens += found;
  prefix_figures_.hit_pages += found / pool_.page_tokens();
  if (sequence.preemptions == 0) sequence.reused += found;
  if (found > 0) sequence.reused_end = positions;
  sequence.computed = sequence.done = positions;
  if (limits_.states > 0 && found > 0) go_on_from_snapshot(sequence);
}

// Reuses the pages that the prefix cache has for the sequence. Returns how many there are beyond those that the
// sequence has.
std::uint32_t Scheduler::reuse_pages(Sequence& sequence) {
  const std::span<const TokenId> tokens = all_but_last(sequence);
  const bool windows = pool_.windows().exists();
  if (limits_.states == 0 && !windows) return sequence.pages.reuse(tokens);
  std::uint32_t known = 0;
  const std::uint32_t found =
      sequence.pages.reuse(tokens, limits_.states > 0 ? &states_ : nullptr, known);
  const bool worth = known >= sequence.pages.shared() + kPagesWorthSaving;
  // slide_window() still needs `branch` once the sequence has passed it and finds no known pages
  // ahead any more.
  if (worth || !windows) sequence.branch = worth ? known * pool_.page_tokens() : 0;
  return found;
}

// Says whether another running sequence with the same tokens so far is computing the page that this
// one needs next.
bool Scheduler::waits_for_another(const Sequence& sequence) const {
  if (limits_.states > 0) return waits_for_snapshot(sequence);
  const std::uint32_t at = sequence.pages.shared();
  const std::size_t begin = sequence.computed, size = pool_.page_tokens();
  if (begin + size >= sequence.tokens.size()) return false;  // has its last token
  return std::ranges::any_of(running_, [&](const Sequence* other) {
    const bool ahead = other->computed > sequence.computed || other->planned_in == step_number_;
    return other != &sequence && ahead && shares_pages(*other) && other->pages.shared() == at &&
           (at == 0 || other->pages.pages()[at - 1] == sequence.pages.pages()[at - 1]) &&
           other->tokens.size() >= begin + size &&
           std::equal(other->tokens.begin() + begin, other->tokens.begin() + begin + size,
                      sequence.tokens.begin() + begin);
  });
}

}  // namespace bulkhead::engine
