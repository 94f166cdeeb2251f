// Protocols besides OpenAI's chat completions, whose answers are one message made of parts: how each of them writes
// an answer (Dialect), and the answer itself (DialectAnswer), which is the same for all of them.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/http/answer.hpp"
#include "orchestrator/http/errors.hpp"

namespace bulkhead::orchestrator {

// Writes one answer. The calls come in the order begin, add..., end; each appends the events that it makes to
// `events`. fail() may take the place of any later call. A dialect uses no sockets and no workers.
class Dialect {
 public:
  virtual ~Dialect() = default;

  virtual std::string new_id() const = 0;
  // Comes before begin(), for protocols whose answers repeat the sampler's settings: those of the request, completed by
  // what the model's file recommends.
  virtual void note_sampling(const ipc::Sampling&) {}
  virtual void begin(const AnswerHead& head, const Usage& usage, std::string& events) = 0;
  // Comes before the add() that has the text of these tokens. `logprobs` has one entry for each token, or none.
  virtual void note_tokens(std::span<const ipc::TokenId>, std::span<const ipc::TokenLogprob>) {}
  // `text` is for an answer that does not come in parts.
  virtual void add(std::string_view text, std::span<const ipc::AnswerPart> parts,
                   std::string& events) = 0;
  // `stopped_by` is the stop string that ended the answer; empty if none did. Returns the reason that the client is
  // told.
  virtual ipc::FinishReason end(ipc::FinishReason reason, std::string_view stopped_by,
                                const Usage& usage, std::string& events) = 0;
  virtual void fail(const ApiError& error, std::string& events) = 0;
  // Returns the body of an answer that is not streamed. Call it after end().
  virtual std::string whole() const = 0;
  // Returns whether the protocol's answers have the log-probabilities of their tokens.
  virtual bool tells_logprobs() const { return false; }
  // Returns the writer of another answer to the same request. Null if the protocol has requests of one prompt and one
  // answer only.
  virtual std::unique_ptr<Dialect> another(std::uint32_t /*index*/) const { return nullptr; }
  // A stream's Content-Type.
  virtual std::string_view content_type() const { return kEventStream; }
  // Returns what the server sends on a silent stream after begin(): it shows that the answer goes on, and adds
  // nothing to it.
  virtual std::string keep_alive() const { return std::string(kSseComment); }
};

class DialectAnswer final : public ConnectedAnswer {
 public:
  DialectAnswer(AnswerServices& services, std::string endpoint, RefusalForm refuse,
                std::shared_ptr<Exchange> exchange, GenerationRequest request,
                std::unique_ptr<Dialect> dialect);

  // Begins. The request must be admitted to `model`. It may have several prompts or n other than 1 only if the
  // dialect makes another(). The object keeps itself alive until it ends.
  void start(std::size_t model, std::chrono::seconds timeout);

 private:
  // One answer of the request.
  struct Running {
    std::unique_ptr<Dialect> dialect;
    RequestId request = {};  // 0 once it is over
    Usage usage = {};
    bool accepted = false, done = false;
    bool calls_tools = false;
    Clock::time_point first_tokens = {}, last_tokens = {};
  };

  void on_warnings(RequestId, std::span<const std::string> warnings) override;
  void on_accepted(RequestId request, std::span<const ipc::TokenId> prompt_tokens) override;
  void on_tokens(const ipc::SequenceTokensView& view) override;
  void on_finished(RequestId request, const ipc::Finished& finished) override;
  void on_failed(RequestId request, const Failure& failure) override;
  void cancel() override;
  std::string whole() override;
  std::string failure(const ApiError& error) override;

  Running* find(RequestId request);  // null if it is over
  void add(Running& running, std::string_view text, std::span<const ipc::AnswerPart> parts);
  void send(const std::string& events);
  Facts facts() const override;
  std::vector<RequestId> unfinished() const override;

  GenerationRequest request_;
  AnswerHead head_;
  std::vector<Running> answers_;
  std::string held_;  // events of a stream that has not begun
};

// Answers with the number of a prompt's tokens, as its worker counts them. The worker refuses what it would refuse to
// answer, and its device computes nothing.
class TokenCount final : public ConnectedAnswer {
 public:
  using Render = std::string (*)(std::size_t tokens);
  TokenCount(AnswerServices& services, std::string endpoint, RefusalForm refuse,
             std::shared_ptr<Exchange> exchange, Render render)
      : ConnectedAnswer(services, std::move(endpoint), refuse, std::move(exchange)),
        render_(render) {}

  // Begins. The request must be admitted to `model`.
  void start(std::size_t model, GenerationRequest request, std::chrono::seconds timeout);

 private:
  void on_accepted(RequestId, std::span<const ipc::TokenId> prompt_tokens) override;
  void on_finished(RequestId, const ipc::Finished&) override;
  void on_failed(RequestId request, const Failure& failure) override;
  std::vector<RequestId> unfinished() const override { return {id_}; }
  void cancel() override;
  std::string whole() override { return render_(tokens_); }

  Render render_;
  RequestId id_ = {};
  std::size_t tokens_ = 0;
};

// Returns whether a call's arguments are a JSON object; the end of an answer may have cut them short. It only checks
// the text and stores no values, because a worker sent the text, and values could take many times its size. Pure.
bool is_whole_object(std::string_view arguments);
// Returns an object that holds arguments which are no JSON object, for protocols whose calls have objects. The key is
// the one that Anthropic's documentation of streamed tools names for such text.
std::string as_invalid_json(std::string_view arguments);

// A protocol's name for a field, and the name of the same field in the parser of chats (`chat`). A name that begins
// with a dot is part of a tool's path.
struct FieldName {
  std::string_view chat;
  std::string_view own;
};
// Returns `error` with the client's own names in `parameter` and in the message that quotes it, or that quotes two
// fields. It replaces the first of `names` that occurs in the path and ends where a part of the path ends. Pure.
ApiError with_own_names(ApiError error, std::span<const FieldName> names);

}  // namespace bulkhead::orchestrator
