// FNV-1a with 64 bits. It tells texts and files apart and is the same in every process. Anyone can construct two
// inputs with the same hash, so it protects against accidents only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace bulkhead {

constexpr std::uint64_t kFnv1aStart = 0xcbf29ce484222325U;

// Returns the hash of `bytes`. To hash several pieces, pass the result for the earlier pieces as `hash`.
inline std::uint64_t fnv1a(std::span<const std::byte> bytes, std::uint64_t hash = kFnv1aStart) {
  for (const std::byte byte : bytes)
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3U;
  return hash;
}
// Hashes eight bytes at a time, which is faster for long data. The value differs from fnv1a's. A remainder of fewer
// than eight bytes does not count.
inline std::uint64_t fnv1a_long_words(std::span<const std::byte> bytes) {
  std::uint64_t hash = kFnv1aStart;
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    hash = (hash ^ word) * 0x100000001b3U;
  }
  return hash;
}
inline std::uint64_t fnv1a(std::string_view text) {
  return fnv1a(std::as_bytes(std::span(text)));
}

}  // namespace bulkhead
