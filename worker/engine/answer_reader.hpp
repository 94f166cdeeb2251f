// Reads an answer's text into parts (content, reasoning, calls), in the format of the model's family, for the records
// that carry them. A pure function of the texts: a resumed request reproduces the parts that were accepted before,
// and continues with the same parts and ids. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/messages.hpp"
#include "worker/model/answer/answer_parser.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

class AnswerReader {
 public:
  // `family` and `tokenizer` must outlive it. `one_call`: the answer ends before a second call.
  AnswerReader(const model::answer::Family& family, const model::Tokenizer& tokenizer,
               model::answer::AnswerRequest request, bool one_call);

  // Returns the text that the reader sees for a token. For a control token of the family's syntax that is the token's
  // name, which is otherwise not part of generated text.
  std::string_view text_of(model::TokenId token) const;
  // Takes the text that the next token completed, and adds to `parts`. Returns true if the answer ends here.
  bool feed(std::string_view text, std::vector<ipc::AnswerPart>& parts);
  // Adds the remaining parts.
  void finish(ipc::FinishReason reason, std::vector<ipc::AnswerPart>& parts);

  // Returns whether a call has begun and is not complete.
  bool in_call() const { return parser_.place().in_call; }

  // Returns how many of the tokens so far were read as reasoning: those up to the first token that gave something
  // else.
  std::uint32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void add(std::vector<model::answer::Delta> deltas, std::vector<ipc::AnswerPart>& parts);

  const model::answer::Family& family_;
  const model::Tokenizer& tokenizer_;
  model::answer::AnswerParser parser_;
  bool one_call_;
  bool over_ = false;
  bool reasons_ = false;  // the last part was reasoning
  std::uint32_t reasoning_tokens_ = 0;
};

}  // namespace bulkhead::engine
