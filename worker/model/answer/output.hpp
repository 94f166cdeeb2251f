// What an answer has given so far: deltas, with the rules for blanks, and the ids of calls.
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
    kArguments,  // a piece of the JSON text of its arguments
  };
  Kind kind = Kind::kContent;
  std::uint32_t call = 0;  // kCall, kArguments: the call's index, from 0
  std::string text;
  std::string id;

  bool operator==(const Delta&) const = default;
};

// Returns 9 letters and digits, which every chat template accepts. The same seed and index give the same id.
std::string make_call_id(std::uint64_t seed, std::uint32_t index);

class Output {
 public:
  explicit Output(std::uint64_t id_seed) : id_seed_(id_seed) {}

  void content(std::string_view text) { flow(content_, Delta::Kind::kContent, text); }
  void reasoning(std::string_view text) { flow(reasoning_, Delta::Kind::kReasoning, text); }
  // Drops what was taken so far, and the next `bytes` of text unless a mark stands before them.
  void skip(std::size_t bytes);
  // A mark stands here: blanks before and behind it do not belong to the content.
  void mark();
  void begin_reasoning();
  // Takes what was held back at the end of an answer.
  void finish();

  // If the id is empty, one is made.
  void begin_call(std::string_view name, std::string_view id);
  void arguments(std::string_view piece);
  // Keeps a piece that must not end cut arguments (a comma, a key): it is sent with the next piece, or never.
  void arguments_later(std::string_view piece) { later_ += piece; }
  bool has_arguments() const { return has_arguments_; }
  void drop_later() { later_.clear(); }
  // A call without any arguments gets `{}`.
  void end_call();

  bool has_content() const { return content_.begun; }
  std::uint32_t calls() const { return calls_; }
  bool in_call() const { return in_call_; }
  // Returns whether content has come since the last mark.
  bool content_since_mark() const { return !content_.trim; }
  std::vector<Delta> take();

 private:
  struct Flow {
    std::string blanks;  // seen and not sent; a mark drops them
    bool trim = false;   // blanks at the front are dropped
    bool begun = false;  // something was sent
  };

  void flow(Flow& flow, Delta::Kind kind, std::string_view text);
  void add(Delta::Kind kind, std::uint32_t call, std::string_view text);

  std::uint64_t id_seed_;
  std::size_t skipped_ = 0;  // bytes of text that are still to be dropped
  Flow content_;
  Flow reasoning_{.blanks = {}, .trim = true, .begun = false};
  std::uint32_t calls_ = 0;
  bool has_arguments_ = false;  // the last call
  bool in_call_ = false;
  std::string later_;
  std::vector<Delta> deltas_;
};

}  // namespace bulkhead::model::answer
