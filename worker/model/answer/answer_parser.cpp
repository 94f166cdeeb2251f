#include "worker/model/answer/answer_parser.hpp"

#include <utility>

#include "worker/model/answer/machine.hpp"

namespace bulkhead::model::answer {

AnswerParser::AnswerParser(const Family& family, AnswerRequest request) {
  if (!request.continued.empty()) {
    machine_ = std::make_unique<Machine>(family, request);
    if (machine_->go_on_from(request.continued)) return;
    request.prompt_end += request.continued;
  }
  machine_ = std::make_unique<Machine>(family, std::move(request));
}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;
AnswerParser& AnswerParser::operator=(AnswerParser&&) noexcept = default;

std::vector<Delta> AnswerParser::feed(std::string_view text) {
  machine_->feed(text);
  return machine_->output().take();
}

std::vector<Delta> AnswerParser::finish(Ended ended) {
  machine_->finish(ended);
  return machine_->output().take();
}

Place AnswerParser::place() const {
  return machine_->place();
}

std::string AnswerParser::undecided() const {
  return machine_->undecided();
}

void Message::add(const std::vector<Delta>& deltas) {
  for (const Delta& delta : deltas) {
    switch (delta.kind) {
      case Delta::Kind::kContent:
        content += delta.text;
        break;
      case Delta::Kind::kReasoning:
        reasoning += delta.text;
        break;
      case Delta::Kind::kCall:
        calls.push_back({delta.id, delta.text, {}});
        break;
      case Delta::Kind::kArguments:
        calls.back().arguments += delta.text;
        break;
    }
  }
}

const char* Message::finish_reason(Ended ended) const {
  if (ended == Ended::kLength) return "length";
  return calls.empty() ? "stop" : "tool_calls";
}

}  // namespace bulkhead::model::answer
