#include "orchestrator/http/choice.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace bulkhead::orchestrator {

std::vector<ipc::AnswerPart> without_reasoning(std::span<const ipc::AnswerPart> parts) {
  std::vector<ipc::AnswerPart> rest(parts.begin(), parts.end());
  std::erase_if(rest,
                [](const ipc::AnswerPart& each) { return each.kind == ipc::PartKind::kReasoning; });
  return rest;
}

ipc::FinishReason told_reason(ipc::FinishReason reason, std::string_view arguments) {
  const bool broken = reason == ipc::FinishReason::kStop && !nlohmann::json::accept(arguments);
  return broken ? ipc::FinishReason::kLength : reason;
}

Choice::Choice(const AnswerHead& head, const ChoiceOptions& options, std::uint32_t index,
               bool first_of_prompt, std::string prompt)
    : head_(&head),
      options_(options),
      index_(index),
      first_of_prompt_(first_of_prompt),
      echo_(std::move(prompt)),
      echo_of_tokens_(options.echo && echo_.empty()),
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
  if (options_.echo && options_.logprobs < 0 && !echo_of_tokens_) put_echo(emit);
  if (!options_.stream || !head_->chat) return;
  ChoicePart role = part("", {});
  role.role = true;
  emit_chunk(role, emit);
}

void Choice::prompt_tokens(std::span<const ipc::TokenLogprob> tokens, const Emit& emit) {
  for (const ipc::TokenLogprob& token : tokens) {
    if (echo_of_tokens_) echo_ += token.bytes;
    if (options_.logprobs >= 0) {
      if (prompt_told_ == 0) {
        logprobs_.add_first(token);
      } else {
        logprobs_.add(std::span(&token, 1));
      }
    }
    ++prompt_told_;
  }
  if (prompt_told_ == prompt_tokens_) put_echo(emit);
}

void Choice::put_echo(const Emit& emit) {
  if (!options_.stream) {
    text_ = std::exchange(echo_, {});
    return;
  }
  ChoicePart chunk = part(echo_, {});
  std::string logprobs;
  if (options_.logprobs >= 0) logprobs = logprobs_.take();
  chunk.logprobs = logprobs;
  emit_chunk(chunk, emit);
  echo_.clear();
}

std::span<const ipc::AnswerPart> Choice::shown(std::span<const ipc::AnswerPart> parts,
                                               std::vector<ipc::AnswerPart>& storage) const {
  if (!options_.hide_reasoning) return parts;
  storage = without_reasoning(parts);
  return storage;
}

void Choice::tokens(const ipc::SequenceTokensView& view, const Emit& emit) {
  completion_tokens_ += view.tokens.size();
  if (!view.logprobs.empty()) logprobs_.add(view.logprobs);
  std::vector<ipc::AnswerPart> storage;
  const std::span<const ipc::AnswerPart> parts = shown(view.parts, storage);
  note_calls(parts);
  if (!options_.stream) {
    keep(view.text, parts);
    if (options_.return_token_ids)
      tokens_.insert(tokens_.end(), view.tokens.begin(), view.tokens.end());
    return;
  }
  const std::string logprobs = view.logprobs.empty() ? "" : logprobs_.take();
  // If the tokens released no text yet, only clients who asked for something else about tokens get a chunk.
  if (view.text.empty() && parts.empty() && view.logprobs.empty() && !options_.return_token_ids)
    return;
  emit_chunks(view.text, parts, view.tokens, logprobs, emit);
}

void Choice::note_calls(std::span<const ipc::AnswerPart> parts) {
  for (const ipc::AnswerPart& each : parts) {
    if (each.kind == ipc::PartKind::kCall) {
      calls_tools_ = true;
      arguments_.clear();
    } else if (each.kind == ipc::PartKind::kArguments) {
      arguments_ += each.text;
    }
  }
}

void Choice::emit_chunks(std::string_view text, std::span<const ipc::AnswerPart> parts,
                         std::span<const ipc::TokenId> tokens, std::string_view logprobs,
                         const Emit& emit) {
  ChoicePart chunk = part(text, tokens);
  chunk.logprobs = logprobs;
  if (!parts.empty()) chunk.piece = &parts.front();
  emit_chunk(chunk, emit);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    chunk = part("", {});
    chunk.piece = &parts[i];
    emit_chunk(chunk, emit);
  }
}

void Choice::keep(std::string_view text, std::span<const ipc::AnswerPart> parts) {
  text_ += text;
  for (const ipc::AnswerPart& each : parts) {
    switch (each.kind) {
      case ipc::PartKind::kContent:
        text_ += each.text;
        break;
      case ipc::PartKind::kReasoning:
        reasoning_ += each.text;
        break;
      case ipc::PartKind::kCall:
        calls_.push_back({each.id, each.text, {}});
        break;
      case ipc::PartKind::kArguments:
        if (!calls_.empty()) calls_.back().arguments += each.text;
        break;
    }
  }
}

void Choice::finished(const ipc::Finished& finished, const Emit& emit) {
  std::vector<ipc::AnswerPart> storage;
  const std::span<const ipc::AnswerPart> parts = shown(finished.parts, storage);
  note_calls(parts);
  const ipc::FinishReason reason =
      calls_tools_ ? told_reason(finished.reason, arguments_) : finished.reason;
  finish_reason_ = finish_reason_name(reason, calls_tools_);
  cached_tokens_ = finished.cached_tokens;
  reasoning_tokens_ = finished.reasoning_tokens;
  accepted_drafts_ = finished.accepted_drafts;
  rejected_drafts_ = finished.rejected_drafts;
  if (!options_.stream) {
    keep(finished.text, parts);
    if (options_.logprobs >= 0) logprobs_text_ = logprobs_.take();
    return;
  }
  if (!finished.text.empty() || !parts.empty()) emit_chunks(finished.text, parts, {}, {}, emit);
  ChoicePart last = part("", {});
  last.finish_reason = finish_reason_;
  emit_chunk(last, emit);
}

ChoicePart Choice::whole() {
  ChoicePart whole = part(text_, tokens_);
  whole.reasoning = reasoning_;
  whole.calls = calls_;
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
  usage.reasoning_tokens += reasoning_tokens_;
  usage.accepted_drafts += accepted_drafts_;
  usage.rejected_drafts += rejected_drafts_;
}

}  // namespace bulkhead::orchestrator
