#include "worker/engine/preparer.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "config/base/json_members.hpp"
#include "worker/engine/call_tools.hpp"
#include "worker/engine/delayed_constraint.hpp"
#include "worker/engine/grammar_constraint.hpp"
#include "worker/engine/infill.hpp"

namespace bulkhead::engine {
namespace {

Result<jinja::ChatPrompt> render(const Language& language, const ipc::ChatPrompt& prompt) {
  if (!language.chat.ok()) return language.chat.error();
  jinja::ChatRequest request;
  request.json = prompt.json;
  const auto seconds = static_cast<std::time_t>(prompt.local_seconds);
  if (::gmtime_r(&seconds, &request.now) == nullptr)
    return Error(ErrorCode::kInvalidArgument, "the request's time is past the calendar's end");
  Result<jinja::ChatPrompt> rendered = language.chat->render(request);
  // The template reaches its limit at each try, so the error must not say "try again later".
  if (!rendered.ok() && rendered.error().code() == ErrorCode::kResourceExhausted)
    return Error(ErrorCode::kInvalidArgument, rendered.error().message());
  return rendered;
}

std::vector<model::TokenId> encode_chat(const model::Tokenizer& tokenizer,
                                        std::span<const jinja::Piece> pieces) {
  // If the tokenizer puts BOS first, the template's own BOS is left out, because the model has seen only one.
  std::string_view bos;
  if (tokenizer.adds_bos() && tokenizer.bos()) bos = tokenizer.vocabulary_text(*tokenizer.bos());
  std::vector<model::Segment> segments;
  segments.reserve(pieces.size());
  // A user's text never becomes special tokens, so nobody can forge a turn.
  for (const jinja::Piece& piece : pieces) {
    std::string_view text = piece.text;
    if (segments.empty() && !piece.from_user && text.starts_with(bos))
      text.remove_prefix(bos.size());
    segments.push_back({text, !piece.from_user});
  }
  return tokenizer.encode(segments, true);
}

std::string_view tools_of(const ipc::ChatPrompt& prompt) {
  JsonMember tools[] = {{"tools"}};
  find_json_members(prompt.json, tools);
  return tools[0].text;
}

// Returns what the reader of the chat's answer needs. `tools`: the tools that may be called, as JSON; text that looks
// like a call of another tool stays text. `constrained`: the answer is calls, or has the form that the request demands.
Result<model::answer::AnswerRequest> answer_request(const Preparer::Chat& chat,
                                                    std::string_view tools,
                                                    const jinja::ChatPrompt& prompt,
                                                    bool constrained) {
  constexpr std::size_t kPromptEnd = 4096;  // longer than any mark
  model::answer::AnswerRequest request;
  BULKHEAD_TRY(request.tools, model::answer::Tools::from_json(tools));
  request.calls_or_content = constrained;
  const std::string all = prompt.text();
  const std::string_view text =
      std::string_view(all).substr(0, all.size() - prompt.continued.size());
  request.prompt_end = text.substr(text.size() - std::min(text.size(), kPromptEnd));
  request.continued = prompt.continued;
  request.id_seed = chat.seed;
  return request;
}

// Ids outside the vocabulary have no text, and decode() relies on never being asked for one.
Status check_tokens(const model::Tokenizer& tokenizer, std::span<const model::TokenId> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= tokenizer.size()) {
      return Error(ErrorCode::kInvalidArgument, "token " + std::to_string(tokens[i]) +
                                                    " at index " + std::to_string(i) +
                                                    " is not in the vocabulary of " +
                                                    std::to_string(tokenizer.size()) + " tokens");
    }
  }
  return {};
}

// ---- questions. Each function makes the message that answers one, and sets `parameter` to the
// request's field that an error is about, if that is not the prompt. ----

Result<ipc::Tokenized> answer_to(const Language& language, const ipc::Tokenize& question,
                                 std::string&) {
  const model::Tokenizer& tokenizer = *language.tokenizer;
  ipc::Tokenized answer{question.request, tokenizer.encode(question.text, question.add_special,
                                                           question.parse_special)};
  answer.form = question.texts;
  if (question.texts == ipc::TokenTexts::kNone) return answer;
  for (const model::TokenId token : answer.tokens) {
    answer.texts.push_back({std::string(question.texts == ipc::TokenTexts::kPieces
                                            ? tokenizer.visible_piece(token)
                                            : tokenizer.vocabulary_text(token))});
  }
  return answer;
}

Result<ipc::Detokenized> answer_to(const Language& language, const ipc::Detokenize& question,
                                   std::string& parameter) {
  parameter = "tokens";
  BULKHEAD_RETURN_IF_ERROR(check_tokens(*language.tokenizer, question.tokens));
  return ipc::Detokenized{question.request, language.tokenizer->decode(question.tokens)};
}

Result<ipc::AppliedTemplate> answer_to(const Language& language, const ipc::ApplyTemplate& question,
                                       std::string& parameter) {
  parameter = "messages";
  BULKHEAD_TRY(jinja::ChatPrompt prompt, render(language, question.prompt));
  return ipc::AppliedTemplate{question.request, prompt.text(), std::move(prompt.warnings)};
}

Result<ipc::CheckedConstraint> answer_to(const Language&, const ipc::CheckConstraint& question,
                                         std::string& parameter) {
  parameter = question.constraint.parameter;
  const Result<constrain::Compiled> compiled = compile_constraint(question.constraint);
  if (!compiled.ok()) return compiled.error();
  return ipc::CheckedConstraint{question.request};
}

}  // namespace

Preparer::Preparer(const Language& language)
    : language_(language), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = std::thread([this] { run(); });
}

Preparer::~Preparer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_one();
  thread_.join();
}

void Preparer::submit(Job job) {
  {
    const std::lock_guard lock(mutex_);
    const bool question = std::holds_alternative<ipc::Question>(job.work);
    (question ? plain_ : urgent_).push_back(std::move(job));
  }
  arrived_.notify_one();
}

std::optional<Preparer::Outcome> Preparer::take() {
  const std::lock_guard lock(mutex_);
  if (done_.empty()) return std::nullopt;
  Outcome outcome = std::move(done_.front());
  done_.pop_front();
  if (done_.empty()) {
    std::uint64_t ignored = 0;
    [[maybe_unused]] const auto bytes = ::read(wake_.get(), &ignored, sizeof ignored);
  }
  return outcome;
}

void Preparer::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    arrived_.wait(lock, [this] { return stopping_ || !urgent_.empty() || !plain_.empty(); });
    if (stopping_) return;
    std::deque<Job>& queue = urgent_.empty() ? plain_ : urgent_;
    const Job job = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    Outcome outcome = work(job);
    lock.lock();
    done_.push_back(std::move(outcome));
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto bytes = ::write(wake_.get(), &one, sizeof one);
  }
}

Preparer::Outcome Preparer::work(const Job& job) {
  Outcome outcome;
  outcome.ticket = job.ticket;
  try {
    prepare(job, outcome);
    if (outcome.status.ok()) add_constraint(job, outcome);
  } catch (const std::bad_alloc&) {
    throw;  // this ends the process: the request is not at fault, and a successor will have the memory
  } catch (const std::exception& failure) {
    outcome.status =
        Error(ErrorCode::kInternal, std::string("preparing a request: ") + failure.what());
  }
  return outcome;
}

void Preparer::prepare(const Job& job, Outcome& outcome) {
  const model::Tokenizer& tokenizer = *language_.tokenizer;
  if (const auto* text = std::get_if<Text>(&job.work)) {
    outcome.tokens = tokenizer.encode(text->text, true, true);
  } else if (const auto* known = std::get_if<Tokens>(&job.work)) {
    outcome.tokens = known->tokens;
  } else if (const auto* chat = std::get_if<Chat>(&job.work)) {
    outcome.status = prepare_chat(*chat, job.constraint, outcome);
  } else if (const auto* infill = std::get_if<ipc::InfillPrompt>(&job.work)) {
    Result<std::vector<model::TokenId>> prompt = infill_prompt(tokenizer, *infill);
    if (prompt.ok()) {
      outcome.tokens = *std::move(prompt);
    } else {
      outcome.status = prompt.error();
      outcome.parameter = "suffix";
    }
  } else if (const auto* pair = std::get_if<ipc::Rank>(&job.work)) {
    outcome.tokens = language_.ranker->prompt.tokens(tokenizer, pair->query, pair->document);
  } else if (const auto* question = std::get_if<ipc::Question>(&job.work)) {
    std::visit(
        [&](const auto& asked) {
          auto answer = answer_to(language_, asked, outcome.parameter);
          if (answer.ok()) {
            outcome.answer = *std::move(answer);
          } else {
            outcome.status = answer.error();
          }
        },
        *question);
  }
}

Status Preparer::prepare_chat(const Chat& chat, const ipc::Constraint& wanted, Outcome& outcome) {
  const model::answer::Family& family = *language_.family;
  const bool constrained = wanted.kind != ipc::ConstraintKind::kNone;
  BULKHEAD_TRY(jinja::ChatPrompt prompt, render(language_, chat.prompt));
  outcome.tokens = encode_chat(*language_.tokenizer, prompt.pieces);
  outcome.warnings = std::move(prompt.warnings);
  std::string tools(tools_of(chat.prompt));
  if (!chat.allowed_tools.empty()) tools = only_tools(tools, chat.allowed_tools);
  outcome.parameter = "tools";
  BULKHEAD_TRY(model::answer::AnswerRequest request,
               answer_request(chat, tools, prompt, constrained));
  outcome.parameter.clear();
  outcome.continued = request.continued;
  if (!request.continued.empty())
    outcome.reasons = model::answer::AnswerParser(family, request).place().reasons;
  if (!calls_) calls_.emplace(*language_.tokenizer, family);
  const bool named = chat.tool_choice == ipc::ToolChoice::kNamed;
  const ToolUse use{.tools = std::move(tools),
                    .choice = chat.tool_choice,
                    .named = named ? chat.tool_name : std::string(),
                    .one_call = named || chat.one_call,
                    .reasoning_budget = chat.reasoning_budget};
  BULKHEAD_TRY(HeldCalls held, calls_->hold(use, wanted, request, outcome.parameter));
  outcome.parameter.clear();
  outcome.constraint = std::move(held.constraint);
  outcome.content_held = held.content;
  if (held.no_calls) request.tools = {};
  outcome.warnings.insert(outcome.warnings.end(), held.warnings.begin(), held.warnings.end());
  const bool calls =
      !request.tools.empty() && family.calls.syntax != model::answer::CallSyntax::kNone;
  // Null if no part of the answer can be anything but content.
  if (calls || !family.reasoning.open.empty())
    outcome.reader = std::make_unique<AnswerReader>(family, *language_.tokenizer,
                                                    std::move(request), chat.one_call);
  return {};
}

// Adds the form that the request demands of its answer, besides calls.
void Preparer::add_constraint(const Job& job, Outcome& outcome) {
  if (job.constraint.kind == ipc::ConstraintKind::kNone || outcome.content_held) return;
  const model::Tokenizer& tokenizer = *language_.tokenizer;
  auto constraint = constraints_.compile(job.constraint, tokenizer);
  if (!constraint.ok()) {
    outcome.status = constraint.error();
    outcome.parameter = job.constraint.parameter;
    return;
  }
  std::unique_ptr<TokenConstraint> bounded =
      std::exchange(outcome.constraint, *std::move(constraint));
  std::string_view mark;
  if (outcome.reasons && language_.family->calls.syntax != model::answer::CallSyntax::kChannels)
    mark = language_.family->reasoning.close;
  else if (std::holds_alternative<Chat>(job.work) && outcome.continued.empty())
    mark = open_reasoning(tokenizer, outcome.tokens, *language_.family);
  if (mark.empty()) {
    // After the reasoning, or from the first token on, the answer holds content and no calls.
    outcome.reader.reset();
  } else {
    outcome.constraint = std::make_unique<DelayedConstraint>(std::move(outcome.constraint), mark,
                                                             tokenizer, std::move(bounded),
                                                             outcome.continued);
  }
}

}  // namespace bulkhead::engine
