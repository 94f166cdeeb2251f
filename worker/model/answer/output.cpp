#include "worker/model/answer/output.hpp"

#include <algorithm>
#include <utility>

#include "config/base/splitmix.hpp"
#include "worker/model/answer/json_text.hpp"

namespace bulkhead::model::answer {

std::string make_call_id(std::uint64_t seed, std::uint32_t index) {
  constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::uint64_t bits = splitmix(splitmix(seed) + kSplitmixStep * (index + 1));
  std::string id;
  for (int i = 0; i < 9; ++i) {
    id += kDigits[bits % kDigits.size()];
    bits /= kDigits.size();
  }
  return id;
}

void Output::add(Delta::Kind kind, std::uint32_t call, std::string_view text) {
  if (text.empty()) return;
  if (deltas_.empty() || deltas_.back().kind != kind)
    deltas_.push_back({.kind = kind, .call = call, .text = {}, .id = {}});
  deltas_.back().text += text;
}

void Output::skip(std::size_t bytes) {
  deltas_.clear();
  content_.blanks.clear();
  reasoning_.blanks.clear();
  skipped_ = bytes;
}

void Output::flow(Flow& flow, Delta::Kind kind, std::string_view text) {
  if (skipped_ > 0) {
    const std::size_t skipped = std::min(skipped_, text.size());
    skipped_ -= skipped;
    text.remove_prefix(skipped);
    flow.trim = false;
    flow.begun = true;
  }
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) {
    if (!flow.trim) flow.blanks += text;
    return;
  }
  if (flow.trim) text.remove_prefix(first);
  const std::size_t last = text.find_last_not_of(kBlanks);
  add(kind, 0, flow.blanks);
  add(kind, 0, text.substr(0, last + 1));
  flow.blanks = text.substr(last + 1);
  flow.trim = false;
  flow.begun = true;
}

void Output::mark() {
  skipped_ = 0;
  content_.blanks.clear();
  content_.trim = true;
}

void Output::begin_reasoning() {
  mark();
  reasoning_.blanks.clear();
  reasoning_.trim = true;
}

void Output::finish() {
  add(Delta::Kind::kContent, 0, content_.blanks);
  content_.blanks.clear();
}

void Output::begin_call(std::string_view name, std::string_view id) {
  mark();
  deltas_.push_back({.kind = Delta::Kind::kCall,
                     .call = calls_,
                     .text = std::string(name),
                     .id = id.empty() ? make_call_id(id_seed_, calls_) : std::string(id)});
  ++calls_;
  has_arguments_ = false;
  in_call_ = true;
  later_.clear();
}

void Output::arguments(std::string_view piece) {
  if (piece.empty()) return;
  has_arguments_ = true;
  add(Delta::Kind::kArguments, calls_ - 1, later_);
  later_.clear();
  add(Delta::Kind::kArguments, calls_ - 1, piece);
}

void Output::end_call() {
  later_.clear();
  if (!has_arguments_) arguments("{}");
  in_call_ = false;
  mark();
}

std::vector<Delta> Output::take() {
  return std::exchange(deltas_, {});
}

}  // namespace bulkhead::model::answer
