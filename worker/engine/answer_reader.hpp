// Reads an answer's text into parts (content, reasoning, calls) as the model's family writes them, for the
// records that carry them. A pure function of the texts given: a resumed request gives again what was
// accepted before, and goes on with the same parts and ids. One thread.
#pragma once

#include <cstdint>
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

  // What a token stands for in the text that is read: a control token that the family's syntax has is
  // its name, which is not part of generated text elsewhere.
  std::string_view text_of(model::TokenId token) const;
  // Takes the text that the next token released, and adds to `parts`. True: the answer ends here.
  bool feed(std::string_view text, std::vector<ipc::AnswerPart>& parts);
  // The rest.
  void finish(ipc::FinishReason reason, std::vector<ipc::AnswerPart>& parts);

  // A call has begun and is not whole yet.
  bool in_call() const { return parser_.place().in_call; }

  // Tokens fed so far that were read as reasoning: those up to the first that gave something else.
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
