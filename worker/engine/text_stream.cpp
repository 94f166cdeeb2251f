#include "worker/engine/text_stream.hpp"

#include <algorithm>
#include <utility>

namespace bulkhead::engine {

TextStream::TextStream(std::vector<std::string> stop) : stop_(std::move(stop)) {
  std::erase_if(stop_, [](const std::string& text) { return text.empty(); });
}

bool TextStream::push(std::string_view bytes, std::string& released) {
  return take(assembler_.push(bytes), released);
}

bool TextStream::finish(std::string& released) {
  if (take(assembler_.finish(), released)) return true;
  released += held_;
  held_.clear();
  return false;
}

bool TextStream::take(std::string_view text, std::string& released) {
  if (stop_.empty()) {
    released += text;
    return false;
  }
  held_ += text;
  std::size_t match = std::string::npos;
  for (const std::string& stop : stop_) {
    const std::size_t found = held_.find(stop);
    if (found >= match) continue;
    match = found;
    stopped_by_ = stop;
  }
  if (match != std::string::npos) {
    released.append(held_, 0, match);
    held_.clear();
    return true;
  }
  std::size_t keep = 0;
  for (const std::string& stop : stop_) {
    for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) {
        keep = length;
        break;
      }
    }
  }
  released.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

}  // namespace bulkhead::engine
