// The `loop` of a {% for %}: its position, the previous item and the next item.
#pragma once

#include <functional>
#include <optional>

#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

struct Statement;
struct Scope;

struct Loop : Object {
  List* source = nullptr;                      // may grow while the loop runs
  std::function<bool(const Value&)> passes;    // the loop's `if`; empty: every item passes
  std::function<Value(const Value&)> recurse;  // for a recursive loop: runs it over other items
  std::int64_t depth0 = 0;
  std::int64_t index0 = -1;
  std::optional<Value> previous;
  std::optional<Value> current;
  std::optional<Value> changed;  // the last argument of loop.changed()
  bool kept = false;             // something may still hold this when the loop has ended

  // Makes the next item the current one and returns it. It looks at an item only when needed, because the loop's
  // condition may read what the body sets.
  std::optional<Value> advance() {
    std::optional<Value> item;
    if (!ahead_.empty()) {
      item = ahead_.front();
      ahead_.erase(ahead_.begin());
    } else {
      item = pull();
    }
    previous = std::exchange(current, item);
    if (item) ++index0;
    return item;
  }
  const Value* peek() {
    if (ahead_.empty()) {
      auto item = pull();
      if (!item) return nullptr;
      ahead_.push_back(*std::move(item));
    }
    return &ahead_.front();
  }
  std::int64_t length() {
    if (!passes)
      return index0 + 1 + static_cast<std::int64_t>(ahead_.size() + source->items.size() - next_);
    while (auto item = pull())
      ahead_.push_back(*std::move(item));
    return index0 + 1 + static_cast<std::int64_t>(ahead_.size());
  }
  // Makes it as new, for another loop.
  void reset() {
    source = nullptr;
    passes = nullptr;
    recurse = nullptr;
    depth0 = 0;
    index0 = -1;
    previous.reset();
    current.reset();
    changed.reset();
    next_ = 0;
    ahead_.clear();
  }

 private:
  std::optional<Value> pull() {
    while (next_ < source->items.size()) {
      Value item = source->items[next_++];
      if (!passes || passes(item)) return item;
    }
    return std::nullopt;
  }

  std::size_t next_ = 0;
  CountedVector<Value> ahead_;
};

}  // namespace bulkhead::jinja
