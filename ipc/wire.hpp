// The wire format, derived from the rows of fields.hpp: how many bytes a message takes and how it is written.
// wire_reader.hpp reads it. Only messages.cpp uses both.
//
//   record   kind u32, then the message as a struct, then zeros up to a multiple of 8 bytes
//   struct   bytes u32 of what follows, then the fields in the order of the row
//   field    bool, enumeration, 32-bit number     4 bytes
//            64-bit number                        8 bytes
//            text                                 bytes u32, the bytes, zeros up to a multiple of 4
//            list                                 count u32, the elements
//            variant                              alternative u32, the value
//
// All numbers are little-endian. Every part is a multiple of 4 bytes, so a list of token ids can be used in place.
// There are no pointers: the reader reads each byte once, from front to back, and no record can make it jump
// elsewhere.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "config/base/strong_id.hpp"
#include "ipc/fields.hpp"
#include "ipc/utf8.hpp"

namespace bulkhead::ipc::wire {

static_assert(std::endian::native == std::endian::little,
              "numbers are copied as they lie in memory");

template <typename T>
concept Struct = requires {
  T::kFields;
};
template <typename T>
concept Number = std::is_same_v<T, std::uint32_t> || std::is_same_v<T, std::int32_t> ||
    std::is_same_v<T, std::uint64_t> || std::is_same_v<T, float> || std::is_same_v<T, double>;

constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + 3) & ~std::size_t{3};
}

// ---- the layout, as text: two builds must agree on it ----

template <typename T>
struct Layout;

template <typename T>
std::string layout() {
  return Layout<std::remove_cvref_t<T>>::text();
}

template <Number T>
struct Layout<T> {
  static std::string text() {
    const char* const kind = std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "i" : "u";
    return kind + std::to_string(sizeof(T));
  }
};
template <>
struct Layout<bool> {
  static std::string text() { return "bool"; }
};
template <typename T>
requires std::is_enum_v<T>
struct Layout<T> {
  static std::string text() {
    return "enum" + std::to_string(static_cast<unsigned>(last_enumerator(T{})));
  }
};
template <typename Tag>
struct Layout<StrongId<Tag>> {
  static std::string text() { return "id"; }
};
template <>
struct Layout<std::string> {
  static std::string text() { return "text"; }
};
template <typename String>
struct Layout<AnyBytes<String>> {
  static std::string text() { return "bytes"; }
};
template <typename String>
struct Layout<WholeText<String>> {
  static std::string text() { return "whole"; }
};
template <typename T>
struct Layout<std::vector<T>> {
  static std::string text() { return "list " + layout<T>(); }
};
template <typename... Ts>
struct Layout<std::variant<Ts...>> {
  static std::string text() { return "one of(" + ((layout<Ts>() + ";") + ...) + ")"; }
};
// The types of a row's fields, without an object of its struct.
struct RowTypes {
  template <typename... Fields>
  constexpr std::tuple<Fields...>* operator()(const Fields&...) const {
    return nullptr;
  }
};
template <Struct T>
struct Layout<T> {
  using Types = decltype(std::declval<const T&>().visit(RowTypes{}));
  static std::string text() { return "(" + std::string(T::kFields) + ": " + types(Types{}) + ")"; }

 private:
  template <typename... Fields>
  static std::string types(std::tuple<Fields...>*) {
    return (std::string() + ... + (layout<Fields>() + ";"));
  }
};

// ---- sizes ----

class Sizes {
 public:
  template <typename T>
  static std::size_t of(const T& value) {
    if constexpr (Struct<T>) {
      return 4 +
             value.visit([](const auto&... fields) { return (std::size_t{0} + ... + of(fields)); });
    } else {
      return sizeof(T) == 8 ? 8 : 4;
    }
  }
  static std::size_t of(const std::string& text) { return of_text(text); }
  template <typename String>
  static std::size_t of(const AnyBytes<String>& text) {
    return of_text(text.value);
  }
  template <typename String>
  static std::size_t of(const WholeText<String>& text) {
    return of_text(text.value);
  }
  template <typename T>
  static std::size_t of(const std::vector<T>& list) {
    std::size_t sum = 4;
    if constexpr (Number<T>) {
      sum += list.size() * sizeof(T);
    } else {
      for (const T& element : list)
        sum += of(element);
    }
    return sum;
  }
  template <typename... Ts>
  static std::size_t of(const std::variant<Ts...>& variant) {
    return 4 + std::visit([](const auto& value) { return of(value); }, variant);
  }

 private:
  static std::size_t of_text(std::string_view text) { return 4 + padded(text.size()); }
};

// ---- writing ----

enum class Texts { kRepaired, kExact };

// Writes into memory with at least as much room as Sizes::of() says.
class Writer {
 public:
  Writer(std::byte* at, Texts texts) : at_(at), texts_(texts) {}
  std::byte* at() const { return at_; }

  template <typename T>
  void put(const T& value) {
    if constexpr (Struct<T>) {
      put_struct(value);
    } else if constexpr (std::is_same_v<T, bool> || std::is_enum_v<T>) {
      number(static_cast<std::uint32_t>(value));
    } else if constexpr (Number<T>) {
      number(value);
    } else {
      number(value.value);  // a StrongId
    }
  }
  void put(const std::string& text) {
    const std::span<char> copy = put_text(text);
    if (texts_ == Texts::kRepaired && !is_utf8(text)) repair_utf8(copy);
  }
  template <typename String>
  void put(const AnyBytes<String>& text) {
    put_text(text.value);
  }
  template <typename String>
  void put(const WholeText<String>& text) {
    put_text(text.value);
  }
  template <typename T>
  void put(const std::vector<T>& list) {
    number(static_cast<std::uint32_t>(list.size()));
    if constexpr (Number<T>) {
      if (!list.empty()) std::memcpy(at_, list.data(), list.size() * sizeof(T));
      at_ += list.size() * sizeof(T);
    } else {
      for (const T& element : list)
        put(element);
    }
  }
  template <typename... Ts>
  void put(const std::variant<Ts...>& variant) {
    number(static_cast<std::uint32_t>(variant.index()));
    std::visit([this](const auto& value) { put(value); }, variant);
  }

 private:
  template <typename T>
  void number(T value) {
    static_assert(sizeof value % 4 == 0);
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  template <typename T>
  void put_struct(const T& value) {
    std::byte* const length_at = at_;
    at_ += 4;
    value.visit([this](const auto&... fields) { (put(fields), ...); });
    const auto length = static_cast<std::uint32_t>(at_ - length_at - 4);
    std::memcpy(length_at, &length, sizeof length);
  }
  std::span<char> put_text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    char* const begin = reinterpret_cast<char*>(at_);
    const std::size_t whole = padded(text.size());
    if (whole != text.size()) std::memset(at_ + text.size(), 0, whole - text.size());
    if (!text.empty()) std::memcpy(at_, text.data(), text.size());
    at_ += whole;
    return {begin, text.size()};
  }

  std::byte* at_;
  Texts texts_;
};

}  // namespace bulkhead::ipc::wire
