#include "orchestrator/http/choice.hpp"

#include <algorithm>
#include <utility>

namespace bulkhead::orchestrator {

Choice::Choice(const AnswerHead& head, const ChoiceOptions& options, std::uint32_t index,
               bool first_of_prompt)
    : head_(&head),
      options_(options),
      index_(index),
      first_of_prompt_(first_of_prompt),
      logprobs_(head.chat, static_cast<std::uint32_t>(std::max(options.logprobs, 0))) {}

ChoicePart Choice::part(std::string_view text, std::span<const ipc::TokenId> tokens) {
  ChoicePart part;
  part.index = index_;
  part.text = text;
  if (options_.return_token_ids) {
    part.token_ids = tokens;
    if (first_of_prompt_ && !std::exchange(told_prompt_, true))
      part.prompt_token_ids = &prompt_ids_;
  }
  return part;
}

void Choice::accepted(std::span<const ipc::TokenId> prompt_tokens, const Emit& emit) {
  accepted_ = true;
  prompt_tokens_ = prompt_tokens.size();
  if (options_.return_token_ids) prompt_ids_.assign(prompt_tokens.begin(), prompt_tokens.end());
  if (!options_.stream || !head_->chat) return;
  ChoicePart role = part("", {});
  role.role = true;
  emit_chunk(role, emit);
}

void Choice::tokens(const ipc::SequenceTokensView& view, const Emit& emit) {
  completion_tokens_ += view.tokens.size();
  if (!view.logprobs.empty()) logprobs_.add(view.logprobs);
  if (!options_.stream) {
    text_ += view.text;
    if (options_.return_token_ids)
      tokens_.insert(tokens_.end(), view.tokens.begin(), view.tokens.end());
    return;
  }
  const std::string logprobs = view.logprobs.empty() ? "" : logprobs_.take();
  // Tokens that released no text yet are worth a chunk only to those who asked for something else
  // about them.
  if (view.text.empty() && view.logprobs.empty() && !options_.return_token_ids) return;
  ChoicePart piece = part(view.text, view.tokens);
  piece.logprobs = logprobs;
  emit_chunk(piece, emit);
}

void Choice::finished(const ipc::Finished& finished, const Emit& emit) {
  finish_reason_ = finish_reason_name(finished.reason);
  cached_tokens_ = finished.cached_tokens;
  if (!options_.stream) {
    text_ += finished.text;
    if (options_.logprobs >= 0) logprobs_text_ = logprobs_.take();
    return;
  }
  if (!finished.text.empty()) emit_chunk(part(finished.text, {}), emit);
  ChoicePart last = part("", {});
  last.finish_reason = finish_reason_;
  emit_chunk(last, emit);
}

ChoicePart Choice::whole() {
  ChoicePart whole = part(text_, tokens_);
  whole.logprobs = logprobs_text_;
  whole.finish_reason = finish_reason_;
  return whole;
}

void Choice::add_to(Usage& usage) const {
  if (first_of_prompt_) {
    usage.prompt_tokens += prompt_tokens_;
    usage.cached_tokens += cached_tokens_;
  }
  usage.completion_tokens += completion_tokens_;
}

}  // namespace bulkhead::orchestrator
