// The two lookups of tokenizing: text -> index, and pair of symbols -> merge. They use open addressing over plain
// arrays, and are read-only once built. Each process uses another seed for the hash, so that nobody can write a
// vocabulary that collides.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace bulkhead::model {

std::uint64_t process_hash_seed();  // hash_maps.cpp

inline std::uint64_t mix_hash(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t hash_text(std::string_view text, std::uint64_t seed) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ULL;
  std::uint64_t state = seed ^ (text.size() * kOdd);
  const char* at = text.data();
  std::size_t left = text.size();
  std::uint64_t word = 0;
  for (; left >= 8; at += 8, left -= 8) {
    std::memcpy(&word, at, 8);
    state = mix_hash(state ^ word, kOdd ^ seed);
  }
  word = 0;
  if (left > 0) std::memcpy(&word, at, left);
  return mix_hash(state ^ word, kOdd ^ seed);
}

// Text -> index. The texts belong to the caller and must not move.
class TextMap {
 public:
  void reserve(std::size_t entries) { rehash(std::bit_ceil(entries * 2 + 16)); }

  // Returns false, without a change, if the text is already there.
  bool insert(std::string_view text, std::uint32_t index) {
    if ((entries_ + 1) * 2 > slots_.size()) rehash(std::bit_ceil(entries_ * 4 + 16));
    const std::uint64_t hash = hash_text(text, seed_);
    for (std::size_t i = hash & mask_;; i = (i + 1) & mask_) {
      Slot& slot = slots_[i];
      if (slot.data == nullptr) {
        slot = {text.data(), static_cast<std::uint32_t>(text.size()), index, hash};
        ++entries_;
        return true;
      }
      if (same(slot, text, hash)) return false;
    }
  }

  std::optional<std::uint32_t> find(std::string_view text) const {
    if (slots_.empty()) return std::nullopt;
    const std::uint64_t hash = hash_text(text, seed_);
    for (std::size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.data == nullptr) return std::nullopt;
      if (same(slot, text, hash)) return slot.index;
    }
  }

 private:
  struct Slot {
    const char* data = nullptr;
    std::uint32_t size = 0;
    std::uint32_t index = 0;
    std::uint64_t hash = 0;
  };

  static bool same(const Slot& slot, std::string_view text, std::uint64_t hash) {
    return slot.hash == hash && slot.size == text.size() &&
           std::memcmp(slot.data, text.data(), text.size()) == 0;
  }

  void rehash(std::size_t size) {
    if (size <= slots_.size()) return;
    std::vector<Slot> old(size);
    old.swap(slots_);
    mask_ = size - 1;
    for (const Slot& slot : old) {
      if (slot.data == nullptr) continue;
      std::size_t i = slot.hash & mask_;
      while (slots_[i].data != nullptr)
        i = (i + 1) & mask_;
      slots_[i] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  std::size_t entries_ = 0;
  std::uint64_t seed_ = process_hash_seed();
};

// (left symbol, right symbol) -> (rank, symbol that they become).
class PairMap {
 public:
  struct Merge {
    std::uint32_t rank;
    std::uint32_t product;
  };

  explicit PairMap(std::size_t entries = 0)
      : slots_(std::bit_ceil(entries * 2 + 16)), mask_(slots_.size() - 1) {}

  // If a pair is inserted twice, the first value stays. Insert at most `entries` pairs.
  void insert(std::uint32_t left, std::uint32_t right, Merge merge) {
    const std::uint64_t key = pair_key(left, right);
    for (std::size_t i = start(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return;
      if (slots_[i].key != kEmpty) continue;
      slots_[i] = {key, merge};
      return;
    }
  }

  std::optional<Merge> find(std::uint32_t left, std::uint32_t right) const {
    const std::uint64_t key = pair_key(left, right);
    for (std::size_t i = start(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmpty) return std::nullopt;
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = ~0ULL;  // no symbol has the number 2^32 - 1
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge{};
  };

  static std::uint64_t pair_key(std::uint32_t left, std::uint32_t right) {
    return std::uint64_t{left} << 32 | right;
  }
  std::size_t start(std::uint64_t key) const {
    return mix_hash(key ^ seed_, 0x9E3779B97F4A7C15ULL ^ seed_) & mask_;
  }

  std::vector<Slot> slots_;
  std::size_t mask_;
  std::uint64_t seed_ = process_hash_seed();
};

}  // namespace bulkhead::model
