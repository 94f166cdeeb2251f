// The parser's core: the text that is not read yet, the functions that read it (routine.hpp), and the rules that all
// families share. There is one source file for each group of syntaxes:
//
//   machine.cpp         text, reasoning, which call syntax comes next
//   json_calls.cpp      calls in JSON, alone and in lists
//   named_calls.cpp     a name, then JSON; names in general
//   tagged_calls.cpp    a pair of tags for each argument
//   literal_calls.cpp   turns Gemma's bare keys and Python's literals into JSON
//   channels.cpp        harmony's messages
//
// A mark that may begin a call opens an *attempt*: everything read from there on is kept until the call's name is
// known to be the name of an offered tool. Then the call begins, and ends reasoning that is open. If the name is not
// offered, what was kept is reasoning where reasoning is open, and content elsewhere.
//
// GCC 12 miscompiles co_await within a switch, beside && and ||, and as the condition of an `if` in a function
// without local variables. So it stands alone here.
//
// Two rules keep the time linear, and bound the memory by what may still become a mark or a name: text is looked at
// again only as far as the longest mark reaches, and what is decided is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/model/answer/answer_parser.hpp"
#include "worker/model/answer/family.hpp"
#include "worker/model/answer/output.hpp"
#include "worker/model/answer/routine.hpp"
#include "worker/model/answer/tools.hpp"

namespace bulkhead::model::answer {

class Machine {
 public:
  Machine(const Family& family, AnswerRequest request);

  // Reads the beginning of the answer, which the client has already. Returns false if it holds a call, whose parts make
  // sense only together; the machine is of no more use then.
  bool go_on_from(std::string_view text);
  void feed(std::string_view text);
  void finish(Ended ended);
  Place place() const;
  std::string undecided() const;
  Output& output() { return out_; }
  RoutineStack& routines() { return stack_; }

 private:
  // ---- input (machine.cpp) ----

  enum class Found : std::uint8_t {
    kUndecided,  // wait for more
    kText,       // no mark: `text` is decided
    kMark,       // marks[index]
    kPartial,    // the answer ended within the beginning of a mark: `text`
    kEnd,
  };
  struct Scan {
    Found found = Found::kUndecided;
    std::size_t index = 0;
    std::string_view text;  // valid until the next take()
  };
  using Marks = std::vector<std::string_view>;

  std::size_t undecided_bytes() const;
  std::string_view rest() const { return std::string_view(input_).substr(at_); }
  bool at_end() const { return at_ == input_.size(); }
  char front() const { return input_[at_]; }
  void take(std::size_t bytes);
  static std::suspend_always input() { return {}; }
  // Returns what comes next. Empty marks never match. kText is never trimmed.
  Scan scan(std::span<const std::string_view> marks) const;
  // Skips blanks; returns false if the answer ended there.
  Routine blanks();
  // Skips blanks; returns whether `c` comes next.
  Routine next_is(char c);

  // ---- attempts ----

  void begin_attempt();
  void abandon();  // it is no call: what was read is content, or reasoning if that is open
  void begin_call(std::string_view name, std::string_view id);
  void end_call() { out_.end_call(); }
  std::size_t open_at_front(std::string_view text) const;
  void forget_attempt();

  // ---- the answer as a whole (machine.cpp) ----

  // Which function waits for more of the answer.
  enum class Waits : std::uint8_t { kElsewhere, kInText, kInReasoning, kInHeader };

  enum class Act : std::uint8_t { kReason, kOpen, kClose, kSkip, kSection, kCall, kCode, kCloser };
  struct Acts {
    Marks marks;
    std::vector<Act> acts;
    std::vector<std::size_t> which;  // the call's opening, or the closer
    void add(std::string_view mark, Act act, std::size_t index = 0);
  };

  void read_prompt(std::string_view prompt_end);
  Acts acts() const;
  Routine answer();
  Routine text();
  Routine reasoning();
  Routine call_in_reasoning();
  Routine bare_json();
  Routine act(Act act, std::size_t which, std::size_t bytes);
  void plain_act(Act act, std::size_t which, std::size_t bytes);
  bool may_reason() const;
  bool among_calls()
      const;  // behind a call or the start of a section of calls, with only blanks since
  Routine call(Act act);
  Routine no_call();
  void text_or_attempt(std::string_view piece);
  bool cut() const { return ended_ && how_ == Ended::kLength; }

  // ---- calls in JSON (json_calls.cpp) ----

  enum class Expect : std::uint8_t { kAnything, kCallKey, kToolName, kFunctionWord };
  struct JsonCall {
    bool strict = false;   // before the name, only a call's own keys may come
    bool inner = false;    // within `function`
    bool started = false;  // the call has begun
    bool named = false;
    std::string name = {};
    std::string id = {};
    std::string held = {};  // arguments that came before the call could begin
  };
  enum class Sink : std::uint8_t { kArguments, kHeld, kDropped };

  Routine json_block();
  Routine json_call(bool strict);
  Routine json_members(JsonCall& call);
  Routine json_member(JsonCall& call, const std::string& key);
  void begin_json_call(JsonCall& call);
  void end_json_call(JsonCall& call, bool complete);
  bool arguments_over() const;
  // Says whether the open call has no arguments because its tool has no parameters.
  bool needs_no_arguments() const;
  Routine json_calls(bool strict);
  Routine json_list(bool keyed, bool strict);
  Routine keyed_call();
  // Reads and unescapes the string at rest(), which begins with `"`; false if it can't be what is expected.
  Routine json_string(std::string& text, Expect expect);
  bool may_be(Expect expect, std::string_view text) const;
  Routine json_value(Sink sink, std::string* held);

  // ---- names, and calls that begin with one (named_calls.cpp) ----

  struct CallName {
    std::string written = {};
    std::string name = {};
    std::string id = {};
    std::size_t end =
        0;  // which of name_ends stood behind it; for a name_stop, the number of name_ends
  };
  Routine named_call();
  Routine typed_name(CallName& name);
  Routine call_name(CallName& name);
  Routine read_name(CallName& name, const std::vector<std::string>& ends,
                    const std::vector<std::string>& stops);
  bool resolve_name(CallName& name) const;
  bool name_may_grow(std::string_view written) const;
  Routine id_before_name(CallName& name);
  Routine read_id(CallName& name);
  Routine skip_fence();
  Routine json_arguments();
  Routine code_call();

  // ---- tagged_calls.cpp ----

  Routine tagged_call();
  Routine parameter(const Tool& tool, bool& first);
  Routine parameter_key(std::string& key, bool& is_text, bool& type_given);
  Routine text_up_to(std::string_view mark, std::string* text);
  Routine cdata(std::string& close);
  Routine text_value(const std::string& close);
  Routine other_value(std::string& value, const std::string& close);

  // ---- literal_calls.cpp ----

  struct Nesting {
    std::vector<bool> objects;  // for each open bracket: whether it belongs to an object
    bool expects_key = false;
  };
  Routine bare_keys_call();
  Routine python_list(bool strict);
  Routine python_call(const Tool& tool);
  Routine python_key(std::string& word, bool& is_key);
  Routine literal(bool python, std::string_view begun);
  bool closes(Nesting& nesting, bool python);
  bool opens(Nesting& nesting, bool python);
  Routine scalar(Nesting& nesting, bool python);
  Routine bare_word(const Nesting& nesting, bool python, std::string_view begun);
  Routine marked_string();
  Routine python_string(const Nesting& nesting);
  Routine string_ends(std::string_view ends);

  // ---- channels.cpp ----

  struct Header {
    std::string text = {};   // including its marks
    bool begun = false;      // it is a header: one of a header's marks was seen
    std::string raw = {};    // the part of the answer before that mark
    std::size_t blanks = 0;  // at the start of `raw`
  };
  Routine channels();
  Routine header(Header& header);
  Routine body(bool reasoning);

  const Family& family_;
  Tools tools_;
  bool calls_or_content_;
  std::string input_;
  std::size_t at_ = 0;
  std::size_t of_prompt_ = 0;  // how many bytes at the start of the input stand in the prompt
  bool ended_ = false;
  Ended how_ = Ended::kStop;
  std::vector<std::string> skips_;
  Output out_;
  RoutineStack stack_;

  bool reasoning_open_ = false;  // the prompt opened it
  bool reasoning_done_ = false;
  bool close_due_ = false;  // a call ended the reasoning, and its closing mark may still come
  bool response_open_ = false;
  bool response_done_ = false;
  Waits waits_ = Waits::kElsewhere;
  bool bare_ = false;           // the attempt began without a mark
  bool in_reasoning_ = false;   // the attempt began within reasoning, and no call has ended that
  const Tool* tool_ = nullptr;  // of the call that began last
  bool attempting_ = false;
  std::string attempt_;
  bool behind_call_ = false;   // no content since the last call
  std::size_t closers_ = 0;    // closers before this one have been read
  std::string prompt_header_;  // channels: the part of the header that the prompt has already
  std::string header_;         // channels: what has been read of the present header
  Routine answer_;
};

}  // namespace bulkhead::model::answer
