// The limits and the heap of one rendering, which every operation on values needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <utility>

#include "worker/model/template/template_error.hpp"
#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

struct Limits {
  // A step is an operation, or some dozens of bytes of text; these take well under 1 s. Simple work, as looking at a
  // variable, counts less: some templates search all messages for each message, which takes DeepSeek V3.2's 2 million
  // turns of a loop for 2,000 messages, half of them calls.
  std::uint64_t steps = 9'000'000;
  int depth = 900;  // nested evaluations; bounds the stack
  std::size_t memory_bytes = 24U << 20;
};

// Returns the number of steps for work on `bytes` of text: copying it, and looking at each character.
constexpr std::uint64_t copy_steps(std::size_t bytes) {
  return bytes / 256;
}
constexpr std::uint64_t scan_steps(std::size_t bytes) {
  return bytes / 16;
}

class Run {
 public:
  explicit Run(const Limits& limits) : limits_(limits), outer_(std::exchange(of_thread_, this)) {}
  ~Run() { of_thread_ = outer_; }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Counts steps of the rendering that this thread is in the middle of, if there is one. Values are compared, hashed
  // and cut into characters by functions that are given no Run, and all of that may take long: lists that share
  // their items have exponentially many to compare.
  static void tick_of_thread(std::uint64_t steps) {
    if (of_thread_ != nullptr) of_thread_->tick(steps);
  }
  static void tick_lightly_of_thread() {
    if (of_thread_ != nullptr) of_thread_->tick_lightly();
  }

  Heap& heap() { return heap_; }
  void tick(std::uint64_t steps = 1) { count(kPartsOfStep * std::min(steps, limits_.steps + 1)); }
  // Counts a part of a step.
  void tick_lightly() { count(1); }

 private:
  friend class Deeper;
  static constexpr std::uint64_t kPartsOfStep = 4;

  void count(std::uint64_t parts) {
    parts_ += parts;
    if (parts_ > kPartsOfStep * limits_.steps)
      throw TemplateError(TemplateError::Kind::kLimit,
                          "takes too many steps: a loop that is too long, or loops within loops; "
                          "shorten the conversation, or use another template "
                          "(models[].chat_template)");
  }

  static inline thread_local Run* of_thread_ = nullptr;

  Limits limits_;
  Run* outer_;
  Heap heap_;
  std::uint64_t parts_ = 0;
  int depth_ = 0;
};

// While it lives, the stack counts as one level deeper.
class Deeper {
 public:
  explicit Deeper(Run& run) : run_(run) {
    if (run_.depth_ >= run_.limits_.depth)
      throw TemplateError(
          TemplateError::Kind::kLimit,
          "goes too deep: it follows values that are nested too deeply, or it calls "
          "itself without end; nest the request's values less (a schema, a call's "
          "arguments), or mend the template");
    ++run_.depth_;
  }
  ~Deeper() { --run_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Run& run_;
};

}  // namespace bulkhead::jinja
