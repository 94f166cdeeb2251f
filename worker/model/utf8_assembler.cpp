#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Which character the bytes so far can still become.
struct Prefix {
  enum State { kWhole, kUnfinished, kWrong } state;
  std::size_t bytes;  // of the whole character, or of the part that is invalid
};

// Follows the well-formed sequences of the Unicode standard, table 3-7. The range of the second byte depends on the
// first, so overlong forms, surrogates and codes past U+10FFFF are noticed as soon as they are seen. The invalid part
// is the longest one that could still have been the beginning of a character, at least one byte ("maximal subpart",
// as the standard advises).
Prefix examine(std::string_view bytes) {
  const auto at = [bytes](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = at(0);
  if (lead < 0x80) return {Prefix::kWhole, 1};
  const std::size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                             : lead >= 0xE0 && lead <= 0xEF ? 3
                             : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                            : 0;
  if (length == 0) return {Prefix::kWrong, 1};
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Prefix::kUnfinished, 0};
    const unsigned low = i > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = i > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (at(i) < low || at(i) > high) return {Prefix::kWrong, i};
  }
  return {Prefix::kWhole, length};
}

}  // namespace

std::string Utf8Assembler::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  out.reserve(pending_.size());
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Prefix next = examine(rest);
    if (next.state == Prefix::kUnfinished) break;
    out += next.state == Prefix::kWhole ? rest.substr(0, next.bytes) : kReplacement;
    rest.remove_prefix(next.bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string Utf8Assembler::finish() {
  if (pending_.empty()) return {};
  pending_.clear();
  return std::string(kReplacement);
}

}  // namespace bulkhead::model
