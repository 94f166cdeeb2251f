// The tokenizer's thread: renders chat templates, encodes and decodes, and compiles constraints while
// the engine's thread runs steps. Jobs for requests go before plain tokenize and detokenize jobs, so that a megabyte to
// be tokenised for somebody who is curious delays nobody's answer by more than the job that has
// begun.
//
// submit() and take() are called from one thread; the descriptor wake_fd() is readable while
// outcomes wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "ipc/messages.hpp"
#include "worker/engine/grammar_constraint.hpp"
#include "worker/model/chat_template.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

// What turns text into tokens. The tokenizer must outlive whoever holds this.
struct Language {
  const model::Tokenizer* tokenizer = nullptr;
  // Or why there is none: what a chat request is told.
  Result<model::ChatTemplate> chat = Error(ErrorCode::kUnsupported, "no chat template");
};

class Preparer {
 public:
  struct Text {
    std::string text;
  };
  struct Tokens {  // known, with a constraint to be compiled
    std::vector<model::TokenId> tokens;
  };
  struct Chat {
    std::vector<ipc::ChatMessage> messages;
  };
  struct Job {
    std::uint64_t ticket = 0;
    std::variant<Text, Tokens, Chat, ipc::Tokenize, ipc::Detokenize> work;
    ipc::Constraint constraint = {};  // of a request
  };
  struct Outcome {
    std::uint64_t ticket = 0;
    Status status;
    std::string parameter;  // the request's field that `status` is about, if not the prompt
    std::vector<model::TokenId> tokens;  // of Text, Tokens, Chat and Tokenize
    std::string text;                    // of Detokenize
    std::unique_ptr<TokenConstraint> constraint;
  };

  explicit Preparer(const Language& language);
  ~Preparer();  // drops jobs that have not begun
  Preparer(const Preparer&) = delete;
  Preparer& operator=(const Preparer&) = delete;

  void submit(Job job);
  std::optional<Outcome> take();
  int wake_fd() const { return wake_.get(); }

 private:
  void run();
  Outcome work(const Job& job);

  const Language& language_;
  ConstraintCompiler constraints_;  // the thread's own
  UniqueFd wake_;                   // eventfd; private to this process
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool stopping_ = false;
  std::deque<Job> urgent_, plain_;
  std::deque<Outcome> done_;
  std::thread thread_;
};

}  // namespace bulkhead::engine
