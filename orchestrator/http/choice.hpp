// One choice of an answer: turns what the router reports into chunks, piece by piece, or into the whole answer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/messages.hpp"
#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {

struct ChoiceOptions {
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;
  std::int32_t logprobs = -1;  // as in ipc::Submit
  bool echo = false;           // the prompt precedes the answer
  bool hide_reasoning = false;
};

// Returns the parts of an answer without the reasoning, for a client that does not ask for it.
std::vector<ipc::AnswerPart> without_reasoning(std::span<const ipc::AnswerPart> parts);

// Returns the finish reason for clients of OpenAI's protocols. `arguments` are those of the answer's last call, as far
// as they have come. If they are not JSON, the model broke the call itself, and clients get kLength, as for a call that
// a limit cut.
ipc::FinishReason told_reason(ipc::FinishReason reason, std::string_view arguments);

class Choice {
 public:
  // Gets one event; not called for answers that are not streamed.
  using Emit = std::function<void(std::string_view event)>;

  // `head` must outlive the choice. `first_of_prompt`: of the choices that share a prompt, this one reports the
  // prompt's tokens. `prompt` is the text that the choice echoes; it is empty if the prompt was given as tokens,
  // whose text comes with prompt_tokens().
  Choice(const AnswerHead& head, const ChoiceOptions& options, std::uint32_t index,
         bool first_of_prompt, std::string prompt = {});

  void accepted(std::span<const ipc::TokenId> prompt_tokens, const Emit& emit);
  void prompt_tokens(std::span<const ipc::TokenLogprob> tokens, const Emit& emit);
  void tokens(const ipc::SequenceTokensView& view, const Emit& emit);
  void finished(const ipc::Finished& finished, const Emit& emit);
  // Returns a choice that is not streamed, once it is done. The result points into this object.
  ChoicePart whole();

  std::uint32_t index() const { return index_; }
  bool is_accepted() const { return accepted_; }
  bool is_done() const { return !finish_reason_.empty(); }
  const std::string& finish_reason() const { return finish_reason_; }  // empty: not done
  // Only the first choice of a prompt counts the prompt's tokens.
  void add_to(Usage& usage) const;

 private:
  ChoicePart part(std::string_view text, std::span<const ipc::TokenId> tokens);
  // Emits a chunk for the text, or one for each part; the first chunk has tokens and log-probabilities.
  void emit_chunks(std::string_view text, std::span<const ipc::AnswerPart> parts,
                   std::span<const ipc::TokenId> tokens, std::string_view logprobs,
                   const Emit& emit);
  void put_echo(const Emit& emit);
  // Returns the parts that the client sees; `storage` holds them if some are left out.
  std::span<const ipc::AnswerPart> shown(std::span<const ipc::AnswerPart> parts,
                                         std::vector<ipc::AnswerPart>& storage) const;
  void note_calls(std::span<const ipc::AnswerPart> parts);
  void keep(std::string_view text, std::span<const ipc::AnswerPart> parts);
  void emit_chunk(const ChoicePart& part, const Emit& emit) const {
    emit(sse_chunk(*head_, part, options_.include_usage));
  }

  const AnswerHead* head_;
  ChoiceOptions options_;
  std::uint32_t index_;
  bool first_of_prompt_;
  bool accepted_ = false;
  bool told_prompt_ = false;
  std::vector<ipc::TokenId> prompt_ids_;  // kept if the request asks for them
  std::size_t prompt_tokens_ = 0;
  std::size_t prompt_told_ = 0;    // how many of them prompt_tokens() has reported
  std::string echo_;               // text to put before the answer
  bool echo_of_tokens_ = false;    // the echo comes with prompt_tokens()
  std::size_t cached_tokens_ = 0;  // tokens of the prompt from the cache
  std::size_t completion_tokens_ = 0;
  std::size_t reasoning_tokens_ = 0;  // how many of the completion's tokens are reasoning
  std::size_t accepted_drafts_ = 0;   // how many of the completion's tokens were guessed
  std::size_t rejected_drafts_ = 0;
  bool calls_tools_ = false;
  std::string arguments_;  // of the last call
  LogprobsJson logprobs_;
  std::string finish_reason_;
  // The answer of a choice that is not streamed.
  std::vector<ipc::TokenId> tokens_;
  std::string text_, reasoning_, logprobs_text_;
  std::vector<ToolCall> calls_;
};

}  // namespace bulkhead::orchestrator
