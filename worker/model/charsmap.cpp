#include "worker/model/charsmap.hpp"

#include <algorithm>
#include <utility>

namespace bulkhead::model {
namespace {

constexpr const char* kCharsmapKey = "tokenizer.ggml.precompiled_charsmap";
// Limits on what damaged tables can do: NFKC's longest sequence and replacement have about 30 bytes.
constexpr std::size_t kMostSequenceBytes = 64;
constexpr std::size_t kMostReplacementBytes = 256;

// The sequences are a double array as the library darts-clone writes it. Each node is one of these units; the next
// node along a byte is at the node's own place XOR its offset XOR the byte, if the unit there has that byte as label.
//
//   bit  31    30 ... 10   9                    8                     7 ... 0
//        0     offset      offset is times 256  a sequence ends here  label
//
// If a sequence ends at a node, the unit at place XOR offset has bit 31 and, in the others, the place of the
// replacement.
constexpr std::uint32_t kIsValue = 1U << 31;

std::uint32_t offset_of(std::uint32_t unit) {
  return (unit >> 10) << ((unit & (1U << 9)) >> 6);
}
std::uint32_t label_of(std::uint32_t unit) {
  return unit & (kIsValue | 0xFFU);
}
bool ends_sequence(std::uint32_t unit) {
  return (unit & (1U << 8)) != 0;
}

bool has_long_replacement(std::string_view replacements) {
  while (!replacements.empty()) {
    const std::size_t end = replacements.find('\0');
    if (end > kMostReplacementBytes) return true;
    replacements.remove_prefix(end + 1);
  }
  return false;
}

}  // namespace

// The bytes of the units as a number, the units, the replacements.
Result<Charsmap> Charsmap::from_gguf(const GgufFile& file) {
  Charsmap map;
  BULKHEAD_TRY(const auto values, file.get_ints(kCharsmapKey));
  if (!values || values->empty()) return map;
  const auto damaged = [&file](const std::string& what) {
    return Error(ErrorCode::kCorrupt, file.name() + ": metadata key " + kCharsmapKey + " " + what +
                                          "; the file is damaged or was converted wrongly");
  };
  std::string bytes;
  bytes.reserve(values->size());
  for (const std::int64_t value : *values) {
    if (value < -128 || value > 255) return damaged("is no array of bytes");
    bytes += static_cast<char>(value);
  }
  const auto unit_at = [&bytes](std::size_t at) {
    std::uint32_t unit = 0;
    for (std::size_t i = 4; i-- > 0;)
      unit = unit << 8 | static_cast<unsigned char>(bytes[at + i]);
    return unit;
  };
  const std::uint32_t size = bytes.size() < 4 ? 0 : unit_at(0);
  if (size == 0 || size % 4 != 0 || size > bytes.size() - 4)
    return damaged("is cut off: " + std::to_string(bytes.size()) + " bytes with a table of " +
                   std::to_string(size));
  for (std::size_t at = 4; at < 4 + std::size_t{size}; at += 4)
    map.units_.push_back(unit_at(at));
  map.replacements_ = bytes.substr(4 + std::size_t{size});
  if (!map.replacements_.empty() && map.replacements_.back() != '\0')
    return damaged("does not end with a zero byte");
  if (has_long_replacement(map.replacements_))
    return damaged("has a replacement of more than " + std::to_string(kMostReplacementBytes) +
                   " bytes");
  return map;
}

Charsmap::Match Charsmap::longest(std::string_view text) const {
  Match match;
  if (units_.empty()) return match;
  text = text.substr(0, kMostSequenceBytes);
  std::size_t place = offset_of(units_[0]);
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    place ^= byte;
    // A zero byte is no label: unused units have it.
    if (byte == 0 || place >= units_.size() || label_of(units_[place]) != byte) break;
    const bool ends = ends_sequence(units_[place]);
    place ^= offset_of(units_[place]);
    if (!ends) continue;
    if (place >= units_.size()) break;
    const std::size_t start = units_[place] & ~kIsValue;
    if (start >= replacements_.size()) break;
    match = {at + 1, replacements_.c_str() + start};
  }
  return match;
}

}  // namespace bulkhead::model
