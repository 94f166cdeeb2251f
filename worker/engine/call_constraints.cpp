#include "worker/engine/call_constraints.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <spdlog/spdlog.h>

#include "worker/engine/call_grammar.hpp"
#include "worker/engine/call_tools.hpp"

namespace bulkhead::engine {
namespace {

using model::answer::CallSyntax;

constexpr std::size_t kMostTools = 8;
constexpr std::int32_t kNoBudget = std::numeric_limits<std::int32_t>::max();
// Each warning becomes a header line of an answer.
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

std::string key_of(const ipc::Constraint& wanted) {
  return std::to_string(static_cast<int>(wanted.kind)) + ' ' + std::to_string(wanted.text.size()) +
         '\n' + wanted.text;
}

}  // namespace

Result<const CallConstraints::Kept*> CallConstraints::kept(std::string key,
                                                           const std::function<Made()>& make) {
  const auto known = std::ranges::find(kept_, key, &Kept::key);
  if (known != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, known);
    return &kept_.front();
  }
  if (tokens_ == nullptr) tokens_ = std::make_shared<SpelledTokens>(tokenizer_, family_);
  BULKHEAD_TRY(CallGrammar made, make());
  auto masks =
      std::make_shared<GrammarMasks>(std::move(made.grammar), tokens_->trie(), tokens_->ends());
  // Once it has been handed out, only the engine's thread touches it.
  const constrain::TokenMask* first = masks->get().mask(masks->get().start());
  if (first == nullptr)
    return Error(ErrorCode::kUnsupported, "it is too ambiguous: it can begin in too many ways");
  if (!constrain::lets_any_through(*first))
    return Error(ErrorCode::kUnsupported, "no token of this model's vocabulary can begin it");
  std::vector<std::string> warnings = short_warnings(std::move(made.warnings));
  for (const std::string& each : warnings)
    spdlog::warn("{}", each);
  kept_.push_front({std::move(key), std::move(masks), std::move(warnings)});
  if (kept_.size() > kMostTools) kept_.pop_back();
  return &kept_.front();
}

Result<const CallConstraints::Kept*> CallConstraints::calls_for(const ToolUse& use) {
  const bool other_forms = use.choice == ipc::ToolChoice::kAuto && family_.calls.bare_json;
  std::string key = (other_forms ? "may be " : "") +
                    std::string(use.one_call ? "call\n" : "calls\n") + use.named + '\n' + use.tools;
  return kept(std::move(key), [&] {
    const CallWish wish{.tools = use.tools,
                        .named = use.named,
                        .one_call = use.one_call,
                        .other_forms = other_forms};
    return make_call_grammar(family_, wish,
                             [this](std::string_view mark) { return tokens_->spell(mark); });
  });
}

Result<std::shared_ptr<GrammarMasks>> CallConstraints::held_calls(
    const ToolUse& use, std::string& parameter, std::vector<std::string>& warnings) {
  const bool forced = use.choice != ipc::ToolChoice::kAuto;
  parameter = forced ? "tool_choice" : "tools";
  if (family_.calls.syntax == CallSyntax::kNone) {
    if (!forced) return std::shared_ptr<GrammarMasks>();
    return Error(ErrorCode::kUnsupported,
                 "the model's chat template has no tool calls that this server can read; "
                 "`models[].chat_template` takes another template");
  }
  parameter = "tools";
  const Result<const Kept*> calls = calls_for(use);
  if (calls.ok()) {
    warnings = (*calls)->warnings;
    return (*calls)->masks;
  }
  if (forced || any_strict_tool(use.tools)) return for_good(calls.error());
  warnings =
      short_warnings({"tool calls are not held to the tools' schemas: " + calls.error().message()});
  spdlog::warn("{}", warnings.front());
  return std::shared_ptr<GrammarMasks>();
}

Result<std::shared_ptr<const constrain::Grammar>> CallConstraints::content_grammar(
    const ipc::Constraint& wanted) {
  BULKHEAD_TRY(constrain::Compiled compiled, compile_constraint(wanted));
  if (family_.calls.syntax != CallSyntax::kChannels) return std::move(compiled.grammar);
  return in_final_channel(*compiled.grammar,
                          [this](std::string_view mark) { return tokens_->spell(mark); });
}

Result<std::shared_ptr<GrammarMasks>> CallConstraints::held_either(
    const ToolUse& use, const ipc::Constraint& wanted, std::string& parameter,
    std::vector<std::string>& warnings) {
  if (family_.calls.syntax == CallSyntax::kNone) return std::shared_ptr<GrammarMasks>();
  parameter = wanted.parameter;
  const Result<const Kept*> either = kept(
      (use.one_call ? "or a call\n" : "or calls\n") + key_of(wanted) + '\n' + use.tools,
      [&]() -> Made {
        BULKHEAD_TRY(const auto content, content_grammar(wanted));
        parameter = "tools";
        const CallWish wish{.tools = use.tools, .one_call = use.one_call, .content = content.get()};
        return make_call_grammar(family_, wish,
                                 [this](std::string_view mark) { return tokens_->spell(mark); });
      });
  if (either.ok()) {
    warnings = (*either)->warnings;
    return (*either)->masks;
  }
  if (parameter != "tools" || any_strict_tool(use.tools)) return for_good(either.error());
  warnings = short_warnings(
      {"the tools can't be called beside '" + wanted.parameter + "': " + either.error().message()});
  spdlog::warn("{}", warnings.front());
  return std::shared_ptr<GrammarMasks>();
}

Result<std::shared_ptr<GrammarMasks>> CallConstraints::held_content(const ipc::Constraint& wanted) {
  const Result<const Kept*> content = kept("content\n" + key_of(wanted), [&]() -> Made {
    CallGrammar made;
    BULKHEAD_TRY(made.grammar, content_grammar(wanted));
    return made;
  });
  if (!content.ok()) return for_good(content.error());
  return (*content)->masks;
}

bool CallConstraints::begins_with_header(const model::answer::AnswerRequest& request) const {
  model::answer::AnswerParser parser(family_, request);
  static_cast<void>(parser.feed({}));
  return parser.place().may_reason;
}

Result<HeldCalls> CallConstraints::hold(const ToolUse& use, const ipc::Constraint& wanted,
                                        model::answer::AnswerRequest request,
                                        std::string& parameter) {
  HeldCalls held;
  std::shared_ptr<GrammarMasks> masks;
  const bool wants = wanted.kind != ipc::ConstraintKind::kNone;
  const bool channels = family_.calls.syntax == CallSyntax::kChannels;
  // A prompt that ends within a message already has that message's header.
  const bool in_message = wants && channels && !begins_with_header(request);
  if (!request.tools.empty() && !wants) {
    BULKHEAD_TRY(masks, held_calls(use, parameter, held.warnings));
  } else if (!request.tools.empty()) {
    if (!in_message) {
      BULKHEAD_TRY(masks, held_either(use, wanted, parameter, held.warnings));
    }
    held.content = masks != nullptr;
    held.no_calls = masks == nullptr;
    if (held.no_calls) request.tools = {};
  }
  if (wants && channels && !in_message && masks == nullptr) {
    parameter = wanted.parameter;
    held.content = true;
    BULKHEAD_TRY(masks, held_content(wanted));
  }
  const bool bounded = use.reasoning_budget >= 0 && use.reasoning_budget != kNoBudget &&
                       !family_.reasoning.open.empty();
  if (masks == nullptr && !bounded) return held;
  if (tokens_ == nullptr) tokens_ = std::make_shared<SpelledTokens>(tokenizer_, family_);
  const bool free_choice =
      masks != nullptr && !held.content && use.choice == ipc::ToolChoice::kAuto;
  AnswerRules rules{.tokens = tokens_,
                    .family = &family_,
                    .held = std::move(masks),
                    .from_start = held.content || use.choice != ipc::ToolChoice::kAuto,
                    .one_call = use.one_call,
                    .may_give_up = free_choice && !any_strict_tool(use.tools),
                    .reasoning_budget = bounded ? use.reasoning_budget : -1};
  held.constraint = std::make_unique<AnswerConstraint>(std::move(rules), std::move(request));
  return held;
}

}  // namespace bulkhead::engine
