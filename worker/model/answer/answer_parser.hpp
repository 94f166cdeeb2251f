// Reads what a model generates, piece by piece, into content, reasoning and tool calls.
//
// The text is the model's, with special tokens shown, without the token that ended it. It may come in pieces of any
// length: the deltas together are the same however the text is cut, and no delta is ever taken back. The parser holds
// text back only while it may still become a mark (with the blanks before it), a call's name, or arguments that wait
// for the name or the id. A new parser of the same request gives the same deltas for the same text, including ids.
//
// The time is linear in the text, and memory depends only on what is held back. No input makes it fail. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker/model/answer/family.hpp"
#include "worker/model/answer/output.hpp"
#include "worker/model/answer/tools.hpp"

namespace bulkhead::model::answer {

enum class Ended : std::uint8_t {
  kStop,    // the model ended it
  kLength,  // a limit ended it
};

struct AnswerRequest {
  Tools tools;             // none: whatever looks like a call is text
  std::string prompt_end;  // the end of the prompt's text; it may have opened reasoning
  std::uint64_t id_seed = 0;
  bool calls_or_content =
      false;  // after the first content no call is read: the answer is one or the other
  // The beginning of the message that the answer continues; it follows `prompt_end` in the prompt, and no delta has it.
  std::string continued = {};
};

// Where in an answer its parser stands. A grammar (engine/answer_constraint.hpp) applies from where the parser sees a
// call begin, and nowhere else.
struct Place {
  bool reasons = false;     // within reasoning, and behind no mark that may begin a call there
  bool may_reason = false;  // reasoning may begin here
  bool calls = false;       // the mark of a call would begin a call here
  bool begun = false;       // behind such a mark; the call's name is not known yet
  bool bare = false;        // within JSON that may be a call without any mark
  bool in_call = false;     // a call has begun, and its end has not been read
};

class Machine;

class AnswerParser {
 public:
  // `family` must outlive the parser; rows of families() always do.
  AnswerParser(const Family& family, AnswerRequest request);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;
  AnswerParser& operator=(AnswerParser&&) noexcept;

  std::vector<Delta> feed(std::string_view text);
  // Returns the remaining deltas. Nothing may be fed afterwards.
  std::vector<Delta> finish(Ended ended);
  // Returns the place after the last feed(). feed({}) goes to the answer's beginning.
  Place place() const;
  // Returns, for `begun` and `bare`, what was read of the call so far, including the mark; otherwise the text that
  // may still become a mark. The result can be long, so call it rarely.
  std::string undecided() const;

 private:
  std::unique_ptr<Machine> machine_;
};

// ---- the whole message, for callers that do not stream ----

struct Call {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text; if the answer was cut short, perhaps only its beginning
};

struct Message {
  std::string content;
  std::string reasoning;
  std::vector<Call> calls;

  void add(const std::vector<Delta>& deltas);
  // Returns "length", "tool_calls" or "stop".
  const char* finish_reason(Ended ended) const;
};

}  // namespace bulkhead::model::answer
