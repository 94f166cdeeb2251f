// How a message lists its fields: one row, from which its size, its encoding, its decoding and the
// protocol's version follow (wire.hpp).
//
//   struct Progress {
//     std::string stage;
//     std::uint64_t done = 0;
//     BULKHEAD_MESSAGE(1, "progress", stage, done)
//   };
//
// A field is a bool, a 32- or 64-bit number, an enumeration that has last_enumerator(), a StrongId,
// a text, a std::vector or std::variant of these, or a struct with a row of its own. A plain
// std::string is text: what a worker sends must be UTF-8 in the daemon, so encoding repairs it.
// any_bytes(field) may hold anything; whole_text(field) is generated text, which must be UTF-8 and is
// not repaired, because its sender releases whole characters only.
//
// New fields go to the end of a row. A record that lacks them reads as their defaults, so that a
// journal that an older daemon wrote can be read.
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

// A struct that is part of messages.
#define BULKHEAD_FIELDS(...)                               \
  static constexpr std::string_view kFields{#__VA_ARGS__}; \
  constexpr auto visit(auto&& visitor) {                   \
    return visitor(__VA_ARGS__);                           \
  }                                                        \
  constexpr auto visit(auto&& visitor) const {             \
    return visitor(__VA_ARGS__);                           \
  }

// A message: its number on the wire, which is never given to another one, and its name in errors.
#define BULKHEAD_MESSAGE(number, name, ...)       \
  static constexpr std::uint32_t kKind = number;  \
  static constexpr std::string_view kName = name; \
  BULKHEAD_FIELDS(__VA_ARGS__)
