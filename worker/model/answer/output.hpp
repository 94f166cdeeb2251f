// What an answer has given so far: deltas, with the rules about blanks, and the ids of calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bulkhead::model::answer {

struct Delta {
  enum class Kind : std::uint8_t {
    kContent,
    kReasoning,
    kCall,       // a call begins: `text` is its name, `id` its id
    kArguments,  // a piece of its arguments' JSON text
  };
  Kind kind = Kind::kContent;
  std::uint32_t call = 0;  // kCall, kArguments: its index, from 0
  std::string text;
  std::string id;

  bool operator==(const Delta&) const = default;
};

// 9 letters and digits, which every chat template takes. The same seed and index give the same id.
std::string make_call_id(std::uint64_t seed, std::uint32_t index);

class Output {
 public:
  explicit Output(std::uint64_t id_seed) : id_seed_(id_seed) {}

  void content(std::string_view text) { flow(content_, Delta::Kind::kContent, text); }
  void reasoning(std::string_view text) { flow(reasoning_, Delta::Kind::kReasoning, text); }
  // A mark stands here: blanks before it and behind it do not belong to the content.
  void mark();
  void begin_reasoning();
  // What was held back at the end of an answer.
  void finish();

  // An empty id: one is made.
  void begin_call(std::string_view name, std::string_view id);
  void arguments(std::string_view piece);
  // For what must not stand at the end of cut arguments (a comma, a key): sent with the next piece,
  // or never.
  void arguments_later(std::string_view piece) { later_ += piece; }
  bool has_arguments() const { return has_arguments_; }
  void drop_later() { later_.clear(); }
  // No arguments at all are `{}`.
  void end_call();

  bool has_content() const { return content_.begun; }
  std::uint32_t calls() const { return calls_; }
  bool in_call() const { return in_call_; }
  // Content has come since the last mark.
  bool content_since_mark() const { return !content_.trim; }
  std::vector<Delta> take();

 private:
  struct Flow {
    std::string blanks;  // seen and not sent: a mark would drop them
    bool trim = false;   // blanks at the front are dropped
    bool begun = false;  // something was sent
  };

  void flow(Flow& flow, Delta::Kind kind, std::string_view text);
  void add(Delta::Kind kind, std::uint32_t call, std::string_view text);

  std::uint64_t id_seed_;
  Flow content_;
  Flow reasoning_{.blanks = {}, .trim = true, .begun = false};
  std::uint32_t calls_ = 0;
  bool has_arguments_ = false;  // the last call
  bool in_call_ = false;
  std::string later_;
  std::vector<Delta> deltas_;
};

}  // namespace bulkhead::model::answer
