#include "worker/engine/answer_reader.hpp"

#include <string>
#include <utility>

namespace bulkhead::engine {

namespace answer = model::answer;

namespace {

ipc::PartKind kind_of(answer::Delta::Kind kind) {
  switch (kind) {
    case answer::Delta::Kind::kContent:
      return ipc::PartKind::kContent;
    case answer::Delta::Kind::kReasoning:
      return ipc::PartKind::kReasoning;
    case answer::Delta::Kind::kCall:
      return ipc::PartKind::kCall;
    case answer::Delta::Kind::kArguments:
      return ipc::PartKind::kArguments;
  }
  return ipc::PartKind::kContent;
}

}  // namespace

AnswerReader::AnswerReader(const answer::Family& family, const model::Tokenizer& tokenizer,
                           answer::AnswerRequest request, bool one_call)
    : family_(family),
      tokenizer_(tokenizer),
      parser_(family, std::move(request)),
      one_call_(one_call) {}

std::string_view AnswerReader::text_of(model::TokenId token) const {
  if (!tokenizer_.is_control(token)) return tokenizer_.piece(token);
  const std::string_view name = tokenizer_.vocabulary_text(token);
  return answer::has_mark(family_, name) ? name : std::string_view();
}

bool AnswerReader::feed(std::string_view text, std::vector<ipc::AnswerPart>& parts) {
  if (over_) return true;
  if (!text.empty()) add(parser_.feed(text), parts);
  if (reasons_) ++reasoning_tokens_;
  return over_;
}

void AnswerReader::finish(ipc::FinishReason reason, std::vector<ipc::AnswerPart>& parts) {
  if (over_) return;
  const bool cut = reason == ipc::FinishReason::kLength;
  add(parser_.finish(cut ? answer::Ended::kLength : answer::Ended::kStop), parts);
}

void AnswerReader::add(std::vector<answer::Delta> deltas, std::vector<ipc::AnswerPart>& parts) {
  for (answer::Delta& delta : deltas) {
    const ipc::PartKind kind = kind_of(delta.kind);
    if (kind == ipc::PartKind::kCall && delta.call > 0 && one_call_) {
      over_ = true;
      return;
    }
    reasons_ = kind == ipc::PartKind::kReasoning;
    if (kind != ipc::PartKind::kCall && !parts.empty() && parts.back().kind == kind) {
      parts.back().text += delta.text;
    } else {
      parts.push_back({kind, delta.call, std::move(delta.text), std::move(delta.id)});
    }
  }
}

}  // namespace bulkhead::engine
