// Reads text and reasoning, and finds out which call comes next.
#include "worker/model/answer/machine.hpp"

#include <algorithm>
#include <utility>

#include "worker/model/answer/json_text.hpp"

namespace bulkhead::model::answer {
namespace {

constexpr std::size_t kCompactBytes = 4096;
constexpr std::string_view kRecipient = "to=";  // in a channel's header

bool ends_with(std::string_view text, std::string_view end) {
  return !end.empty() && text.ends_with(end);
}

}  // namespace

Machine::Machine(const Family& family, AnswerRequest request)
    : family_(family),
      tools_(std::move(request.tools)),
      calls_or_content_(request.calls_or_content),
      skips_(family.skips),
      out_(request.id_seed),
      answer_((read_prompt(request.prompt_end), answer())) {
  answer_.enter();
}

void Machine::read_prompt(std::string_view prompt_end) {
  const Reasoning& reasoning = family_.reasoning;
  if (!family_.skip_behind_name.empty()) {
    for (const Tool& tool : tools_.all())
      skips_.push_back(family_.skip_before_name + tool.name + family_.skip_behind_name);
  }
  if (family_.calls.begun_by_prompt) {
    input_ = family_.calls.opens[0];
    of_prompt_ = input_.size();
  }
  if (family_.calls.syntax == CallSyntax::kChannels) {
    const std::size_t start = prompt_end.rfind("<|start|>");
    if (start != std::string_view::npos) prompt_header_ = prompt_end.substr(start + 9);
    return;
  }
  const std::size_t last = prompt_end.find_last_not_of(kBlanks);
  prompt_end = prompt_end.substr(0, last + 1);  // npos + 1 is 0
  reasoning_open_ = ends_with(prompt_end, reasoning.open);
  reasoning_done_ = ends_with(prompt_end, reasoning.close);
  response_open_ = ends_with(prompt_end, family_.response.open);
  if (reasoning_done_ || response_open_) out_.mark();
}

// ---- input ----

void Machine::feed(std::string_view text) {
  if (at_end() || at_ > kCompactBytes) {
    input_.erase(0, at_);
    at_ = 0;
  }
  input_ += text;
  waits_ = Waits::kElsewhere;
  run(stack_);
}

bool Machine::go_on_from(std::string_view text) {
  feed(text);
  if (out_.calls() > 0) return false;
  out_.skip(undecided_bytes());
  return true;
}

std::size_t Machine::undecided_bytes() const {
  const std::size_t held = waits_ == Waits::kInHeader ? header_.size() : attempt_.size();
  const std::size_t all = held + rest().size();
  return all - std::min(all, of_prompt_);
}

Place Machine::place() const {
  const bool offered = !tools_.empty() && family_.calls.syntax != CallSyntax::kNone;
  Place place;
  place.reasons = waits_ == Waits::kInReasoning;
  place.in_call = out_.in_call();
  if (attempting_) {
    place.bare = bare_;
    place.begun = !bare_;
  } else if (waits_ == Waits::kInHeader) {
    place.may_reason = true;
    place.begun = offered && header_.find(kRecipient) != std::string::npos;
    place.calls = offered && !place.begun;
  } else {
    place.may_reason = waits_ == Waits::kInText && may_reason();
    place.calls =
        offered &&
        (waits_ == Waits::kInText ||
         (place.reasons && (family_.reasoning.ends_at_call || family_.reasoning.ends_at_section)));
  }
  return place;
}

std::string Machine::undecided() const {
  if (attempting_) return attempt_ + std::string(rest());
  if (waits_ == Waits::kInHeader) {
    const std::size_t at = header_.find(kRecipient);
    return at == std::string::npos || tools_.empty() ? header_ : header_.substr(at);
  }
  return std::string(rest());
}

void Machine::finish(Ended ended) {
  ended_ = true;
  how_ = ended;
  run(stack_);
  out_.finish();
}

void Machine::take(std::size_t bytes) {
  if (attempting_) attempt_ += rest().substr(0, bytes);
  at_ += bytes;
}

Machine::Scan Machine::scan(std::span<const std::string_view> marks) const {
  const std::string_view text = rest();
  if (text.empty()) return {ended_ ? Found::kEnd : Found::kUndecided, 0, {}};
  std::string firsts;
  for (const std::string_view mark : marks) {
    if (!mark.empty()) firsts += mark[0];
  }
  std::size_t first = text.find_first_of(firsts);
  if (first == 0) {
    bool begins = false;
    std::size_t longest = marks.size();  // one mark may begin with another
    for (std::size_t i = 0; i < marks.size(); ++i) {
      if (marks[i].empty()) continue;
      if (!text.starts_with(marks[i])) {
        begins = begins || marks[i].starts_with(text);
      } else if (longest == marks.size() || marks[i].size() > marks[longest].size()) {
        longest = i;
      }
    }
    // If a limit cut the longer mark, its beginning is not the shorter one.
    const bool cut_within =
        begins && cut() && longest < marks.size() && text.size() > marks[longest].size();
    if (longest < marks.size() && (ended_ || !begins) && !cut_within)
      return {Found::kMark, longest, {}};
    if (begins) return {ended_ ? Found::kPartial : Found::kUndecided, 0, text};
    first = text.find_first_of(firsts, 1);
  }
  return {Found::kText, 0, text.substr(0, first)};
}

Routine Machine::blanks() {
  for (;;) {
    const std::size_t first = rest().find_first_not_of(kBlanks);
    const bool found = first != std::string_view::npos;
    take(found ? first : rest().size());
    if (found) co_return true;
    if (ended_) co_return false;
    co_await input();
  }
}

Routine Machine::next_is(char c) {
  const bool more = co_await blanks();
  co_return more&& front() == c;
}

// ---- attempts ----

void Machine::begin_attempt() {
  attempting_ = true;
}

void Machine::abandon() {
  attempting_ = false;
  const std::size_t of_prompt = std::min(std::exchange(of_prompt_, 0), attempt_.size());
  std::string_view text = std::string_view(attempt_).substr(of_prompt);
  if (in_reasoning_) {
    out_.reasoning(text);
    attempt_.clear();
    return;
  }
  if (const std::size_t mark = family_.calls.around_text ? open_at_front(text) : 0; mark > 0) {
    out_.mark();
    text.remove_prefix(mark);
  }
  out_.content(text);
  attempt_.clear();
}

// Returns the length of the mark with which the text begins; 0 if it begins with none.
std::size_t Machine::open_at_front(std::string_view text) const {
  std::size_t longest = 0;
  for (const std::string& open : family_.calls.opens) {
    if (text.starts_with(open)) longest = std::max(longest, open.size());
  }
  return longest;
}

void Machine::forget_attempt() {
  attempting_ = false;
  of_prompt_ = 0;
  attempt_.clear();
  out_.mark();
}

void Machine::begin_call(std::string_view name, std::string_view id) {
  attempting_ = false;
  in_reasoning_ = false;
  of_prompt_ = 0;
  attempt_.clear();
  tool_ = tools_.find(name);
  out_.begin_call(name, id);
}

void Machine::text_or_attempt(std::string_view piece) {
  if (!attempting_) {
    const std::size_t of_prompt = std::min(of_prompt_, piece.size());
    of_prompt_ -= of_prompt;
    out_.content(piece.substr(of_prompt));
    take(piece.size());
    return;
  }
  const std::size_t first = piece.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return take(piece.size());
  // What follows the first character is looked at again: more marks count outside an attempt.
  std::size_t end = first + 1;
  while (end < piece.size() && (static_cast<unsigned char>(piece[end]) & 0xC0) == 0x80)
    ++end;
  take(end);
  abandon();
}

// ---- the answer ----

void Machine::Acts::add(std::string_view mark, Act act, std::size_t index) {
  if (mark.empty()) return;
  marks.push_back(mark);
  acts.push_back(act);
  which.push_back(index);
}

bool Machine::may_reason() const {
  const bool nothing_yet = !out_.has_content() && out_.calls() == 0;
  return family_.reasoning.anywhere || (nothing_yet && !reasoning_done_ && !response_open_);
}

Machine::Acts Machine::acts() const {
  Acts result;
  const Reasoning& reasoning = family_.reasoning;
  const Calls& calls = family_.calls;
  const bool nothing_yet = !out_.has_content() && out_.calls() == 0;
  if (!attempting_) {
    if (may_reason()) result.add(reasoning.open, Act::kReason);
    if (reasoning.close_alone && may_reason()) result.add(reasoning.close, Act::kOpen);
    if (close_due_ && !out_.has_content()) result.add(reasoning.close, Act::kSkip);
    if (response_open_) result.add(family_.response.close, Act::kClose);
    const bool may_open = nothing_yet || family_.response.open == reasoning.close;
    if (may_open && !response_open_ && !response_done_)
      result.add(family_.response.open, Act::kOpen);
    for (const std::string& mark : skips_)
      result.add(mark, Act::kSkip);
  }
  if (tools_.empty() || calls.syntax == CallSyntax::kNone) return result;
  if (calls_or_content_ && out_.has_content()) return result;
  // A closer comes first: the same mark may also open a call (Llama 4).
  if (!attempting_ && among_calls()) {
    for (std::size_t i = closers_; i < calls.closers.size(); ++i)
      result.add(calls.closers[i], Act::kCloser, i);
  }
  for (std::size_t i = 0; i < calls.opens.size(); ++i)
    result.add(calls.opens[i], Act::kCall, i);
  result.add(calls.code_open, Act::kCode);
  result.add(calls.section, Act::kSection);
  return result;
}

Routine Machine::answer() {
  if (family_.calls.syntax == CallSyntax::kChannels) co_return co_await channels();
  if (reasoning_open_) co_await reasoning();
  if (family_.calls.bare_json && !tools_.empty()) co_await bare_json();
  co_return co_await text();
}

Routine Machine::text() {
  for (;;) {
    const Acts possible = acts();
    const Scan next = scan(possible.marks);
    if (next.found == Found::kUndecided) {
      waits_ = Waits::kInText;
      co_await input();
    } else if (next.found == Found::kMark) {
      co_await act(possible.acts[next.index], possible.which[next.index],
                   possible.marks[next.index].size());
    } else if (next.found == Found::kEnd) {
      if (attempting_) cut() ? forget_attempt() : abandon();
      co_return true;
    } else if (next.found == Found::kPartial && cut() &&
               (among_calls() || of_prompt_ > 0 || !skips_.empty())) {
      take(next.text.size());  // the part of a mark that a limit left is not text
      forget_attempt();
    } else {
      text_or_attempt(next.text);
    }
  }
}

bool Machine::among_calls() const {
  return attempting_ || (behind_call_ && !out_.content_since_mark());
}

Routine Machine::act(Act act, std::size_t which, std::size_t bytes) {
  if (act == Act::kReason) {
    take(bytes);
    co_await reasoning();
  } else if (act == Act::kCall || act == Act::kCode) {
    begin_attempt();
    take(bytes);
    const std::uint32_t before = out_.calls();
    const bool read = co_await call(act);
    if (out_.calls() > before) {
      behind_call_ = true;
      closers_ = 0;
    }
    if (attempting_) read || cut() ? forget_attempt() : abandon();
  } else {
    plain_act(act, which, bytes);
  }
  co_return true;
}

void Machine::plain_act(Act act, std::size_t which, std::size_t bytes) {
  switch (act) {
    case Act::kReason:
    case Act::kCall:
    case Act::kCode:
      break;  // these continue to read
    case Act::kOpen:
    case Act::kClose:
      take(bytes);
      response_open_ = act == Act::kOpen;
      response_done_ = act == Act::kClose;
      out_.mark();
      break;
    case Act::kSkip:
      close_due_ = false;
      of_prompt_ = 0;
      take(bytes);
      out_.mark();
      break;
    case Act::kCloser:
      take(bytes);
      closers_ = which + 1;
      break;
    case Act::kSection:
      if (attempting_) abandon();  // this is a second one, and the first opened nothing
      begin_attempt();
      take(bytes);
      break;
  }
}

Routine Machine::call(Act act) {
  if (act == Act::kCode) return code_call();
  switch (family_.calls.syntax) {
    case CallSyntax::kNone:
    case CallSyntax::kChannels:
      return no_call();
    case CallSyntax::kJson:
      return json_block();
    case CallSyntax::kJsonList:
      return json_list(false, false);
    case CallSyntax::kKeyedList:
      return json_list(true, false);
    case CallSyntax::kNamed:
      return named_call();
    case CallSyntax::kTagged:
      return tagged_call();
    case CallSyntax::kBareKeys:
      return bare_keys_call();
    case CallSyntax::kPython:
      return python_list(false);
  }
  return no_call();
}

Routine Machine::no_call() {
  co_return false;
}

Routine Machine::reasoning() {
  out_.begin_reasoning();
  bool fresh = true;  // an opening mark that is repeated here is dropped
  const Reasoning& marks = family_.reasoning;
  for (;;) {
    Marks ends = {marks.close, fresh ? std::string_view(marks.open) : std::string_view()};
    if (marks.ends_at_call && !tools_.empty())
      ends.insert(ends.end(), family_.calls.opens.begin(), family_.calls.opens.end());
    if ((marks.ends_at_call || marks.ends_at_section) && !tools_.empty())
      ends.push_back(family_.calls.section);
    const Scan next = scan(ends);
    if (next.found == Found::kUndecided) {
      waits_ = Waits::kInReasoning;
      co_await input();
    } else if (next.found == Found::kText || next.found == Found::kPartial) {
      fresh = fresh && trimmed(next.text).empty();
      out_.reasoning(next.text);
      take(next.text.size());
    } else if (next.found == Found::kEnd) {
      co_return true;
    } else if (next.index == 1) {
      take(marks.open.size());
    } else {
      bool over = next.index == 0;
      response_open_ = over && marks.close == family_.response.open;
      if (over) {
        take(marks.close.size());
      } else {
        fresh = false;
        over = co_await call_in_reasoning();
        close_due_ = over && marks.close != family_.response.open;
      }
      reasoning_done_ = over;
      if (over) out_.mark();
      if (over) co_return true;
    }
  }
}

// Reads the call that may begin here; gives false if there is none, and what was read is reasoning.
Routine Machine::call_in_reasoning() {
  const std::uint32_t before = out_.calls();
  in_reasoning_ = true;
  begin_attempt();
  while (attempting_) {
    const Acts possible = acts();
    const Scan next = scan(possible.marks);
    if (next.found == Found::kUndecided) {
      waits_ = Waits::kInText;
      co_await input();
    } else if (next.found == Found::kMark) {
      co_await act(possible.acts[next.index], possible.which[next.index],
                   possible.marks[next.index].size());
    } else if (next.found != Found::kText && cut()) {
      take(next.text.size());
      forget_attempt();
    } else if (next.found == Found::kEnd) {
      abandon();
    } else {
      text_or_attempt(next.text);
    }
  }
  in_reasoning_ = false;
  co_return out_.calls() > before;
}

Routine Machine::bare_json() {
  begin_attempt();
  bare_ = true;
  const bool more = co_await blanks();
  if (more && bare_begins(family_.calls).find(front()) != std::string_view::npos) {
    const bool python = family_.calls.syntax == CallSyntax::kPython;
    Routine calls = python           ? python_list(true)
                    : front() == '[' ? json_list(false, true)
                                     : json_calls(true);
    const bool read = co_await calls;
    if (attempting_ && cut()) forget_attempt();
    behind_call_ = read;
  }
  if (attempting_) abandon();
  bare_ = false;
  co_return true;
}

}  // namespace bulkhead::model::answer
