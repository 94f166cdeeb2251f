// What requests change in their rows of logits: masks of the tokens that their constraints allow, for draws on the host
// and on the device, and biases and penalties for draws on the device.
#include <algorithm>
#include <memory>
#include <utility>

#include "worker/engine/engine_request.hpp"

namespace bulkhead::engine {

// The masks are made while the device computes the logits that they are for; handle_output() finds them ready.
void Engine::make_masks() {
  for (const Scheduler::Member& member : scheduler_.members()) {
    if (member.sequence == nullptr || member.outputs == 0) continue;
    auto& request = static_cast<Request&>(*member.sequence);
    if (request.constraint != nullptr && request.output == Output::kLogits)
      static_cast<void>(request.constraint->mask());
  }
}

// Gives the step submitted last its adjustments, once the engine knows every token before them. The engine submits no
// further step until then. The device usually loses no time, because it is still computing the step's logits.
Status Engine::give_adjustments() {
  if (adjusted_step_ == nullptr) return {};
  const bool known = std::ranges::none_of(adjusted_step_->columns, [](const Column& column) {
    return column.adjusted && column.chosen_by != kByHost;
  });
  if (!known && scheduler_.in_flight() > 1) return {};
  const Step& step = *std::exchange(adjusted_step_, nullptr);
  const auto members = scheduler_.planned_members();
  adjusted_columns_ = 0;
  adjustments_.clear();
  for (std::uint32_t i = 0; i < step.columns.size(); ++i) {
    if (!step.columns[i].adjusted) continue;
    if (adjusted_columns_ == adjusted_.size()) adjusted_.emplace_back();
    Adjusted& made = adjusted_[adjusted_columns_++];
    made.column = i;
    made.mask.clear();
    made.ahead.clear();
    const Scheduler::Member& member = members[step.columns[i].sequence];
    if (member.sequence == nullptr) {
      adjustments_.emplace_back();
      continue;
    }
    adjust(member, step.columns[i].token, made);
    LogitEdits edits = static_cast<Request&>(*member.sequence).history.edits();
    edits.ahead = made.ahead;
    adjustments_.push_back({made.mask, edits});
  }
  masks_ahead_.reset();
  const Status chosen = executor_.choose(adjustments_);
  const StepFacts& facts = step_facts_[(steps_submitted_ - 1) % step_facts_.size()];
  return chosen.ok() ? chosen : Status(chosen.error().within(facts.name(steps_submitted_)));
}

// A draft's row depends on the guesses up to its own, as if they were tokens of the answer. If they are not, its output
// is of no use. `token`: the column's.
void Engine::adjust(const Scheduler::Member& member, TokenId token, Adjusted& made) {
  auto& request = static_cast<Request&>(*member.sequence);
  if (made.column < member.drafts_from) {
    guesses_.clear();
    masks_ahead_.reset();
    if (request.constraint != nullptr) write_mask(request, made);
    return;
  }
  guesses_.push_back(token);
  request.history.look_ahead(guesses_, made.ahead);
  if (request.constraint == nullptr) return;
  if (made.column == member.drafts_from) masks_ahead_ = request.constraint->ahead();
  const auto* const mask = masks_ahead_ == nullptr ? nullptr : masks_ahead_->behind(token);
  if (mask != nullptr && allows_any(*mask)) {
    made.mask = *mask;
  } else {
    masks_ahead_.reset();  // the draft is drawn without a mask, and so are those after it
  }
}

// Leaves the mask empty if every token may come, or if the request will fail because none may.
void Engine::write_mask(Request& request, Adjusted& made) {
  const auto mask = request.constraint->mask();
  if (!mask.ok())
    return failed_masks_.push_back({steps_submitted_, made.column, mask.error().message()});
  made.mask.assign(mask->begin(), mask->end());
  if (made.mask.empty() || allows_any(made.mask)) return;
  made.mask.clear();
  failed_masks_.push_back({steps_submitted_, made.column, kNothingGoesOn});
}

bool Engine::allows_any(std::span<const std::uint32_t> mask) const {
  const std::uint32_t vocabulary = executor_.limits().vocabulary;
  const std::size_t whole = std::min<std::size_t>(mask.size(), vocabulary / 32);
  if (std::ranges::any_of(mask.first(whole), [](std::uint32_t word) { return word != 0; }))
    return true;
  return whole < mask.size() && (mask[whole] & ((1U << (vocabulary % 32)) - 1)) != 0;
}

// Says whether a draft's output, whose column has the right token, was drawn under the mask that the constraint has
// now. Its penalties were right, because they follow from the tokens alone. No step is submitted after one with
// drafts, so the masks are still there.
bool Engine::drawn_under_its_mask(Request& request, std::uint32_t column) const {
  if (!request.adjusted || request.constraint == nullptr) return true;
  const auto found = std::ranges::lower_bound(std::span(adjusted_).first(adjusted_columns_), column,
                                              {}, &Adjusted::column);
  const auto mask = request.constraint->mask();
  return mask.ok() && std::ranges::equal(*mask, found->mask);
}

// Returns why there was no mask for the column of the step that ended; null: there was one.
const char* Engine::mask_failure(std::uint32_t column) const {
  const auto found = std::ranges::find_if(failed_masks_, [&](const FailedMask& each) {
    return each.step == steps_ended_ && each.column == column;
  });
  return found == failed_masks_.end() ? nullptr : found->why.c_str();
}

}  // namespace bulkhead::engine
