// The tokenizer's thread: it renders chat templates, encodes and decodes, and compiles constraints while the engine's
// thread runs steps. Jobs of requests that generate go before questions (ipc::Question), so a megabyte to be
// tokenised delays an answer by at most the job that has already begun.
//
// Call submit() and take() from one thread; the descriptor wake_fd() is readable while outcomes wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "ipc/messages.hpp"
#include "worker/engine/answer_reader.hpp"
#include "worker/engine/call_constraints.hpp"
#include "worker/engine/grammar_constraint.hpp"
#include "worker/model/answer/family.hpp"
#include "worker/model/ranking.hpp"
#include "worker/model/template/chat.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

// What turns text into tokens. The tokenizer must outlive every user of this struct.
struct Language {
  const model::Tokenizer* tokenizer = nullptr;
  // Or the reason why there is none, for the error of a chat request.
  Result<jinja::Chat> chat = Error(ErrorCode::kUnsupported, "no chat template");
  // How the models of this template's family write their answers.
  const model::answer::Family* family = &model::answer::plain_family();
  // For a model that ranks; or the reason why the model does not.
  Result<model::Ranker> ranker = Error(ErrorCode::kUnsupported, "this model does not rank");
};

class Preparer {
 public:
  struct Text {
    std::string text;
  };
  struct Tokens {  // the tokens are known; a constraint must be compiled
    std::vector<model::TokenId> tokens;
  };
  struct Chat {
    ipc::ChatPrompt prompt;
    std::uint64_t seed = 0;  // for the ids of its calls
    bool one_call = false;
    ipc::ToolChoice tool_choice = ipc::ToolChoice::kAuto;
    std::string tool_name = {};
    std::int32_t reasoning_budget = -1;           // tokens; -1: no limit
    std::vector<std::string> allowed_tools = {};  // tools that may be called; empty: all
  };
  struct Job {
    std::uint64_t ticket = 0;
    std::variant<Text, Tokens, Chat, ipc::InfillPrompt, ipc::Rank, ipc::Question> work;
    ipc::Constraint constraint = {};  // of a request
  };
  struct Outcome {
    std::uint64_t ticket = 0;
    Status status;
    std::string parameter;  // the request's field that `status` is about, if it is not the prompt
    std::optional<ipc::FromWorker> answer;  // of a Question
    std::vector<model::TokenId> tokens;     // of prompts
    std::vector<std::string> warnings;      // of Chat
    std::unique_ptr<TokenConstraint> constraint;
    bool content_held = false;             // `constraint` also enforces the wanted form of the content
    bool reasons = false;                  // the answer continues reasoning that a message has begun
    std::string continued;                 // the text that the answer continues, if it does
    std::unique_ptr<AnswerReader> reader;  // for Chat; null: its answer is plain text
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
  void prepare(const Job& job, Outcome& outcome);
  Status prepare_chat(const Chat& chat, const ipc::Constraint& wanted, Outcome& outcome);
  void add_constraint(const Job& job, Outcome& outcome);

  const Language& language_;
  ConstraintCompiler constraints_;        // used by the thread only
  std::optional<CallConstraints> calls_;  // used by the thread only; made for the first chat with tools
  UniqueFd wake_;                         // eventfd; private to this process
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool stopping_ = false;
  std::deque<Job> urgent_, plain_;
  std::deque<Outcome> done_;
  std::thread thread_;
};

}  // namespace bulkhead::engine
