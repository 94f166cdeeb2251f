#include "worker/engine/preparer.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "worker/engine/delayed_constraint.hpp"

namespace bulkhead::engine {
namespace {

Result<std::vector<model::TokenId>> encode_chat(const Language& language,
                                                const std::vector<ipc::ChatMessage>& messages) {
  if (!language.chat.ok()) return language.chat.error();
  std::vector<model::ChatTurn> turns;
  turns.reserve(messages.size());
  for (const ipc::ChatMessage& message : messages)
    turns.push_back({message.role, message.content});
  BULKHEAD_TRY(const std::vector<model::RenderedPiece> pieces, language.chat->render(turns));
  std::vector<model::Segment> segments;
  segments.reserve(pieces.size());
  // A piece of the template may hold special tokens; what a user wrote never does, so nobody can
  // forge a turn.
  for (const model::RenderedPiece& piece : pieces)
    segments.push_back({piece.text, piece.special});
  return language.tokenizer->encode(segments, true);
}

// Ids outside the vocabulary have no text; decode() may rely on not being asked for it.
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
    const bool request = std::holds_alternative<Text>(job.work) ||
                         std::holds_alternative<Tokens>(job.work) ||
                         std::holds_alternative<Chat>(job.work);
    (request ? urgent_ : plain_).push_back(std::move(job));
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
  const model::Tokenizer& tokenizer = *language_.tokenizer;
  try {
    if (const auto* text = std::get_if<Text>(&job.work)) {
      outcome.tokens = tokenizer.encode(text->text, true, true);
    } else if (const auto* known = std::get_if<Tokens>(&job.work)) {
      outcome.tokens = known->tokens;
    } else if (const auto* chat = std::get_if<Chat>(&job.work)) {
      auto tokens = encode_chat(language_, chat->messages);
      if (tokens.ok()) {
        outcome.tokens = *std::move(tokens);
      } else {
        outcome.status = tokens.error();
      }
    } else if (const auto* tokenize = std::get_if<ipc::Tokenize>(&job.work)) {
      outcome.tokens =
          tokenizer.encode(tokenize->text, tokenize->add_special, tokenize->parse_special);
    } else if (const auto* detokenize = std::get_if<ipc::Detokenize>(&job.work)) {
      outcome.status = check_tokens(tokenizer, detokenize->tokens);
      if (outcome.status.ok()) outcome.text = tokenizer.decode(detokenize->tokens);
    }
    const bool chats = std::holds_alternative<Chat>(job.work);
    if (outcome.status.ok()) {
      auto constraint = constraints_.compile(job.constraint, tokenizer);
      if (constraint.ok()) {
        outcome.constraint = *std::move(constraint);
        const std::string_view mark = outcome.constraint != nullptr && chats
                                          ? open_reasoning(tokenizer, outcome.tokens)
                                          : std::string_view();
        if (!mark.empty())
          outcome.constraint =
              std::make_unique<DelayedConstraint>(std::move(outcome.constraint), mark, tokenizer);
      } else {
        outcome.status = constraint.error();
        outcome.parameter = job.constraint.parameter;
      }
    }
  } catch (const std::bad_alloc&) {
    throw;  // ends the process: not this request's doing, and a successor will have the memory
  } catch (const std::exception& failure) {
    outcome.status =
        Error(ErrorCode::kInternal, std::string("preparing a request: ") + failure.what());
  }
  return outcome;
}

}  // namespace bulkhead::engine
