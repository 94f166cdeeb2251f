#include "tools/cli/sse.hpp"

namespace bulkhead::cli {

bool SseParser::push(std::string_view bytes, const OnData& on_data) {
  for (const char c : bytes) {
    if (c == '\n' && after_return_) {
      after_return_ = false;
      continue;
    }
    after_return_ = c == '\r';
    if (c == '\n' || c == '\r') {
      end_line(on_data);
    } else {
      line_.push_back(c);
      if (line_.size() + data_.size() > kMaxEventBytes) return false;
    }
  }
  return true;
}

void SseParser::end_line(const OnData& on_data) {
  if (line_.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  std::string_view line = line_;
  if (line.starts_with("data:")) {
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_.push_back('\n');
    data_.append(line);
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace bulkhead::cli
