// Masks: which tokens the constraints of requests allow, for draws on the host and on the device.
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

// Gives the step submitted last its masks, once the engine knows every token before them. The engine submits no further
// step until then. The device usually loses no time, because it is still computing the step's logits.
Status Engine::give_masks() {
  if (masked_step_ == nullptr) return {};
  const bool known = std::ranges::none_of(masked_step_->columns, [](const Column& column) {
    return column.masked && column.chosen_by != kByHost;
  });
  if (!known && scheduler_.in_flight() > 1) return {};
  const Step& step = *std::exchange(masked_step_, nullptr);
  const auto members = scheduler_.planned_members();
  std::unique_ptr<MasksAhead> ahead;
  masked_columns_.clear();
  for (std::uint32_t i = 0; i < step.columns.size(); ++i) {
    const Column& column = step.columns[i];
    if (!column.masked) continue;
    if (masked_columns_.size() == mask_words_.size()) mask_words_.emplace_back();
    std::vector<std::uint32_t>& words = mask_words_[masked_columns_.size()];
    words.clear();
    masked_columns_.push_back(i);
    const Scheduler::Member& member = members[column.sequence];
    if (member.sequence == nullptr) continue;
    auto& request = static_cast<Request&>(*member.sequence);
    if (i < member.drafts_from) {
      write_mask(request, i, words);
      continue;
    }
    if (i == member.drafts_from) ahead = request.constraint->ahead();
    const auto* const mask = ahead == nullptr ? nullptr : ahead->behind(column.token);
    if (mask != nullptr && allows_any(*mask)) {
      words = *mask;
    } else {
      ahead.reset();  // the draft is drawn without a mask, and so are those behind it
    }
  }
  masks_.assign(mask_words_.begin(),
                mask_words_.begin() + static_cast<std::ptrdiff_t>(masked_columns_.size()));
  const Status chosen = executor_.choose(masks_);
  const StepFacts& facts = step_facts_[(steps_submitted_ - 1) % step_facts_.size()];
  return chosen.ok() ? chosen : Status(chosen.error().within(facts.name(steps_submitted_)));
}

// Leaves `words` empty if every token may come, or if the request will fail because none may.
void Engine::write_mask(Request& request, std::uint32_t column, std::vector<std::uint32_t>& words) {
  const auto mask = request.constraint->mask();
  if (!mask.ok())
    return failed_masks_.push_back({steps_submitted_, column, mask.error().message()});
  words.assign(mask->begin(), mask->end());
  if (words.empty() || allows_any(words)) return;
  words.clear();
  failed_masks_.push_back({steps_submitted_, column, kNothingGoesOn});
}

bool Engine::allows_any(std::span<const std::uint32_t> mask) const {
  const std::uint32_t vocabulary = executor_.limits().vocabulary;
  const std::size_t whole = std::min<std::size_t>(mask.size(), vocabulary / 32);
  if (std::ranges::any_of(mask.first(whole), [](std::uint32_t word) { return word != 0; }))
    return true;
  return whole < mask.size() && (mask[whole] & ((1U << (vocabulary % 32)) - 1)) != 0;
}

// Says whether a draft's output, whose column has the right token, was drawn under the mask that the constraint has
// now. No step is submitted behind one with drafts, so the masks are still there.
bool Engine::drawn_under_its_mask(Request& request, std::uint32_t column) const {
  if (!request.masked) return true;
  const auto found = std::ranges::lower_bound(masked_columns_, column);
  const auto& used = mask_words_[static_cast<std::size_t>(found - masked_columns_.begin())];
  const auto mask = request.constraint->mask();
  return mask.ok() && std::ranges::equal(*mask, used);
}

// Returns why there was no mask for the column of the step that ended; null: there was one.
const char* Engine::mask_failure(std::uint32_t column) const {
  const auto found = std::ranges::find_if(failed_masks_, [&](const FailedMask& each) {
    return each.step == steps_ended_ && each.column == column;
  });
  return found == failed_masks_.end() ? nullptr : found->why.c_str();
}

}  // namespace bulkhead::engine
