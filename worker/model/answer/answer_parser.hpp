// Reads what a model generates, as it comes, into content, reasoning and tool calls.
//
// The text is the model's with special tokens shown, without the token that ended it. It may come
// in pieces of any length: the deltas, put together, are the same for every way of cutting it, and
// nothing that was given is ever taken back. Text is held back only while it may still become a
// mark (with the blanks before it), a call's name, or arguments that wait for the name or the id.
// Feeding the same text to a new parser of the same request gives the same deltas, ids included.
//
// Time is linear in the text, memory in what is held back; no input makes it fail. Not thread-safe.
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
  kStop,    // by the model itself
  kLength,  // by a limit
};

struct AnswerRequest {
  Tools tools;             // none: whatever looks like a call is text
  std::string prompt_end;  // the end of the prompt's text; it may have opened reasoning
  std::uint64_t id_seed = 0;
  bool calls_or_content =
      false;  // behind the first content no call is read: the answer is one or the other
};

// Where in an answer its parser stands: what holds an answer to a grammar (engine/answer_constraint.hpp) begins
// where the parser sees a call begin, and nowhere else.
struct Place {
  bool reasons = false;     // within reasoning
  bool may_reason = false;  // reasoning may begin here
  bool calls = false;       // the mark of a call would begin one here
  bool begun = false;       // behind such a mark, and the call's name is not known yet
  bool bare = false;        // within JSON that may be a call without any mark
  bool in_call = false;     // a call has begun, and its end was not read yet
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
  // The rest. Nothing may be fed afterwards.
  std::vector<Delta> finish(Ended ended);
  // After the last feed(); feed({}) goes to the answer's beginning.
  Place place() const;
  // begun, bare: what was read of it, the mark included. Else the text that may still become a mark. As long as it
  // is, so it is asked for seldom.
  std::string undecided() const;

 private:
  std::unique_ptr<Machine> machine_;
};

// ---- the whole message, for callers that do not stream ----

struct Call {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text; for a cut answer perhaps only its beginning
};

struct Message {
  std::string content;
  std::string reasoning;
  std::vector<Call> calls;

  void add(const std::vector<Delta>& deltas);
  // "length", "tool_calls" or "stop".
  const char* finish_reason(Ended ended) const;
};

}  // namespace bulkhead::model::answer
