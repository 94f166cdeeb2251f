#include "worker/engine/call_constraints.hpp"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "worker/engine/call_grammar.hpp"
#include "worker/engine/call_tools.hpp"

namespace bulkhead::engine {
namespace {

using model::answer::CallSyntax;

constexpr std::size_t kMostKept = 16;
// Each is a line in the head of an answer.
constexpr std::size_t kMostWarnings = 8;
constexpr std::size_t kMostWarningBytes = 240;

std::string short_line(std::string text) {
  for (char& c : text) {
    if (c < 0x20 || c > 0x7E) c = '?';
  }
  if (text.size() <= kMostWarningBytes) return text;
  return text.substr(0, kMostWarningBytes - 4) + " ...";
}

std::vector<std::string> short_warnings(std::vector<std::string> all) {
  const std::size_t more = all.size() > kMostWarnings ? all.size() - kMostWarnings + 1 : 0;
  all.resize(all.size() - more);
  for (std::string& each : all)
    each = short_line(std::move(each));
  if (more > 0) all.push_back("and " + std::to_string(more) + " more keywords of tools' schemas");
  return all;
}

bool any_bit(const constrain::TokenMask& mask) {
  return std::ranges::any_of(mask, [](std::uint32_t word) { return word != 0; });
}

Error cannot_force(const model::answer::Family& family) {
  if (family.calls.syntax == CallSyntax::kNone) {
    return Error(ErrorCode::kUnsupported,
                 "the model's chat template has no tool calls that this server can read; "
                 "`models[].chat_template` takes another template");
  }
  return Error(ErrorCode::kUnsupported, "calls of models of the family '" + family.name +
                                            "' can't be held to a schema yet; leave out "
                                            "`strict`, and use 'auto' or 'none'");
}

}  // namespace

Result<const CallConstraints::Kept*> CallConstraints::grammar_for(const ToolUse& use) {
  const auto known = std::ranges::find_if(kept_, [&](const Kept& kept) {
    return kept.tools == use.tools && kept.named == use.named && kept.one_call == use.one_call;
  });
  if (known != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, known);
    return &kept_.front();
  }
  if (tokens_ == nullptr) tokens_ = std::make_shared<SpelledTokens>(tokenizer_, family_);
  const CallWish wish{.tools = use.tools, .named = use.named, .one_call = use.one_call};
  BULKHEAD_TRY(CallGrammar made, make_call_grammar(family_, wish, [this](std::string_view mark) {
                 return tokens_->spell(mark);
               }));
  auto masks =
      std::make_shared<GrammarMasks>(std::move(made.grammar), tokens_->trie(), tokens_->ends());
  // Once it has been handed out, the engine's thread alone touches it.
  const constrain::TokenMask* first = masks->get().mask(masks->get().start());
  if (first == nullptr)
    return Error(ErrorCode::kUnsupported, "the tools' schemas are too ambiguous to be held");
  if (!any_bit(*first))
    return Error(ErrorCode::kUnsupported, "no token of this model's vocabulary can begin a call");
  std::vector<std::string> warnings = short_warnings(std::move(made.warnings));
  for (const std::string& each : warnings)
    spdlog::warn("{}", each);
  kept_.push_front({use.tools, use.named, use.one_call, std::move(masks), std::move(warnings)});
  if (kept_.size() > kMostKept) kept_.pop_back();
  return &kept_.front();
}

Result<HeldCalls> CallConstraints::hold(const ToolUse& use, model::answer::AnswerRequest request,
                                        std::string& parameter) {
  const bool forced = use.choice != ipc::ToolChoice::kAuto;
  parameter = forced ? "tool_choice" : "tools";
  if (!can_hold_calls(family_)) {
    const bool strict = family_.calls.syntax != CallSyntax::kNone && any_strict_tool(use.tools);
    if (forced || strict) return cannot_force(family_);
    return HeldCalls();
  }
  parameter = "tools";
  HeldCalls held;
  Result<const Kept*> kept = grammar_for(use);
  if (!kept.ok()) {
    if (forced || any_strict_tool(use.tools)) {
      // Too complex today, and tomorrow: no reason to try again later.
      const bool limit = kept.error().code() == ErrorCode::kResourceExhausted;
      return limit ? Error(ErrorCode::kUnsupported, kept.error().message()) : kept.error();
    }
    held.warnings = short_warnings(
        {"tool calls are not held to the tools' schemas: " + kept.error().message()});
    spdlog::warn("{}", held.warnings.front());
    return held;
  }
  held.warnings = (*kept)->warnings;
  AnswerRules rules{.tokens = tokens_,
                    .family = &family_,
                    .held = (*kept)->masks,
                    .from_start = forced,
                    .one_call = use.one_call};
  held.constraint = std::make_unique<AnswerConstraint>(std::move(rules), std::move(request));
  return held;
}

}  // namespace bulkhead::engine
