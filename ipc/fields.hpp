// How a message lists its fields: one row for each message. The message's size, encoding, decoding and share in the
// protocol's version follow from the row (wire.hpp).
//
//   struct Progress {
//     std::string stage;
//     std::uint64_t done = 0;
//     BULKHEAD_MESSAGE(1, "progress", stage, done)
//   };
//
// A field is a bool, a 32- or 64-bit number, an enumeration that has last_enumerator(), a StrongId, a text, a
// std::vector or std::variant of these, or a struct with a row of its own. A plain std::string is text: the daemon
// accepts only UTF-8 from a worker, so encoding repairs it. any_bytes(field) may hold any bytes. whole_text(field) is
// generated text: it must be UTF-8, and encoding does not repair it, because its sender releases whole characters
// only.
//
// Add new fields at the end of a row. If a record lacks them, they get their default values; so a newer daemon can
// read a journal that an older one wrote.
#pragma once

#include <string_view>

namespace bulkhead::ipc {

template <typename String>
struct AnyBytes {
  String& value;
};
template <typename String>
struct WholeText {
  String& value;
};

template <typename String>
constexpr AnyBytes<String> any_bytes(String& field) {
  return {field};
}
template <typename String>
constexpr WholeText<String> whole_text(String& field) {
  return {field};
}

}  // namespace bulkhead::ipc

// A struct that messages contain.
#define BULKHEAD_FIELDS(...)                               \
  static constexpr std::string_view kFields{#__VA_ARGS__}; \
  constexpr auto visit(auto&& visitor) {                   \
    return visitor(__VA_ARGS__);                           \
  }                                                        \
  constexpr auto visit(auto&& visitor) const {             \
    return visitor(__VA_ARGS__);                           \
  }

// A message: its number on the wire, which no other message may ever get, and its name in errors.
#define BULKHEAD_MESSAGE(number, name, ...)       \
  static constexpr std::uint32_t kKind = number;  \
  static constexpr std::string_view kName = name; \
  BULKHEAD_FIELDS(__VA_ARGS__)
