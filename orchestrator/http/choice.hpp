// One choice of an answer: from what the router reports to chunks, piece by piece, or to the whole.
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
  bool echo = false;           // the prompt stands before the answer
  bool hide_reasoning = false;
};

// What a client sees of an answer's parts that does not want the reasoning.
std::vector<ipc::AnswerPart> without_reasoning(std::span<const ipc::AnswerPart> parts);

class Choice {
 public:
  // Takes one event; not called for answers that are not streamed.
  using Emit = std::function<void(std::string_view event)>;

  // `head` must outlive the choice. `first_of_prompt`: among the choices that share a prompt, this
  // one tells the prompt's tokens. `prompt`: the text that the choice echoes; empty if the prompt
  // was given as tokens, whose text comes with prompt_tokens().
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
  // The prompt's tokens count with the prompt's first choice.
  void add_to(Usage& usage) const;

 private:
  ChoicePart part(std::string_view text, std::span<const ipc::TokenId> tokens);
  // A chunk for the text, or one for each part; the first has tokens and log-probabilities.
  void emit_chunks(std::string_view text, std::span<const ipc::AnswerPart> parts,
                   std::span<const ipc::TokenId> tokens, std::string_view logprobs,
                   const Emit& emit);
  void put_echo(const Emit& emit);
  // The parts that the client sees; `storage` holds them where they are not all.
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
  std::size_t prompt_told_ = 0;    // those of them that prompt_tokens() told
  std::string echo_;               // text to be put before the answer
  bool echo_of_tokens_ = false;    // the echo comes with prompt_tokens()
  std::size_t cached_tokens_ = 0;  // tokens of the prompt from the cache
  std::size_t completion_tokens_ = 0;
  std::size_t reasoning_tokens_ = 0;  // those of the completion's tokens that are reasoning
  std::size_t accepted_drafts_ = 0;   // those of the completion's tokens that were guessed
  std::size_t rejected_drafts_ = 0;
  bool calls_tools_ = false;
  LogprobsJson logprobs_;
  std::string finish_reason_;
  // A choice that is not streamed gathers its answer here.
  std::vector<ipc::TokenId> tokens_;
  std::string text_, reasoning_, logprobs_text_;
  std::vector<ToolCall> calls_;
};

}  // namespace bulkhead::orchestrator
