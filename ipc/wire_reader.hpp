// Reads records that a hostile process may have written (format: wire.hpp).
//
// The record is in private memory, so nobody changes it meanwhile. The reader checks each length against what is left
// of the surrounding struct before it reads or reserves anything. It reserves memory for lists only in proportion to
// the record's own size (kHeapPerByte), so a short record can't cause a large allocation. The first broken rule is
// kept: everything that is read after it gets its default value.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/wire.hpp"

namespace bulkhead::ipc::wire {

enum class Trust { kHostile, kTrusted };

class Reader {
 public:
  // Heap bytes that the elements of lists may take for each byte of a record. An element that is a text or a list
  // takes 4 bytes on the wire and 24 or 32 of heap, besides the 4 of its struct. Today's largest element takes 5 bytes
  // of heap for each of its bytes.
  static constexpr std::size_t kHeapPerByte = 6;
  static constexpr std::size_t kHeapSlack = 4096;

  // `record` is 8-byte aligned. kTrusted: the daemon wrote it, and texts may hold any bytes.
  Reader(std::span<const std::byte> record, Trust trust)
      : at_(record.data()),
        end_(record.data() + record.size()),
        trust_(trust),
        heap_left_(record.size() * kHeapPerByte + kHeapSlack) {}

  bool failed() const { return !failure_.empty(); }
  // The first broken rule, such as "finished.text is not UTF-8 at byte 3".
  const std::string& failure() const { return failure_; }

  std::uint32_t kind() { return number<std::uint32_t>(); }
  // Reads a whole message, after its kind, to the record's end.
  template <typename T>
  void message(T& value) {
    message_ = T::kName;
    get(value);
    if (!failed() && !is_padding()) fail(where() + " has bytes after its end");
  }
  void fail(std::string what) {
    if (failed()) return;
    failure_ = std::move(what);
  }

  template <typename T>
  void get(T& value) {
    if constexpr (Struct<T>) {
      get_struct(value);
    } else if constexpr (requires { value.read_from(*this); }) {
      value.read_from(*this);
    } else if constexpr (std::is_same_v<T, bool>) {
      value = below(2) != 0;
    } else if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(below(static_cast<std::uint32_t>(last_enumerator(T{})) + 1));
    } else if constexpr (Number<T>) {
      value = number<T>();
    } else {
      value.value = number<decltype(value.value)>();  // a StrongId
    }
  }
  void get(std::string& text) {
    const std::string_view view = take_text();
    if (trust_ == Trust::kTrusted || require_utf8(view)) text = view;
  }
  template <typename String>
  void get(AnyBytes<String>& text) {
    text.value = take_text();
  }
  template <typename String>
  void get(WholeText<String>& text) {
    const std::string_view view = take_text();
    if (require_utf8(view)) text.value = view;
  }
  template <Number T>
  void get(std::span<const T>& list) {
    static_assert(alignof(T) <= 4);
    list = take_numbers<T>();
  }
  template <typename T>
  void get(std::vector<T>& list) {
    if constexpr (Number<T>) {
      static_assert(alignof(T) <= 4);
      const std::span<const T> view = take_numbers<T>();
      list.assign(view.begin(), view.end());
    } else {
      const std::uint32_t count = take_count();
      if (std::uint64_t{count} * sizeof(T) > heap_left_) return fail_claim(count, "elements");
      heap_left_ -= count * sizeof(T);
      list.reserve(count);
      for (std::uint32_t i = 0; i < count && !failed(); ++i)
        get(list.emplace_back());
    }
  }
  template <typename... Ts>
  void get(std::variant<Ts...>& variant) {
    const std::uint32_t chosen = below(sizeof...(Ts));
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((I == chosen ? get(variant.template emplace<I>()) : void()), ...);
    }
    (std::index_sequence_for<Ts...>{});
  }
  // Reads the elements of a list one after the other into the same value, and calls `visit` for each.
  template <typename T, typename Visit>
  void for_each(T& element, Visit visit) {
    const std::uint32_t count = take_count();
    for (std::uint32_t i = 0; i < count && !failed(); ++i) {
      element = T{};
      get(element);
      if (!failed()) visit(element);
    }
  }

 private:
  // The structs that surround what is being read, for errors.
  struct Level {
    const Level* around;
    std::string_view fields;  // the text of the row
    int index = -1;           // the index of the field that is being read
  };

  template <typename T>
  void get_struct(T& value) {
    const auto length = number<std::uint32_t>();
    if (length > left()) return fail_claim(length, "bytes");
    Level level{level_, T::kFields};
    level_ = &level;
    const std::byte* const outer_end = std::exchange(end_, at_ + length);
    value.visit([&](auto&&... fields) {
      // A field that an older program did not know keeps its default value.
      ((++level.index, left() == 0 ? void() : get(fields)), ...);
    });
    if (left() != 0) fail(where() + ": it has more fields than this program reads");
    end_ = outer_end;
    level_ = level.around;
    if constexpr (requires { value.broken_rule(); }) {
      if (failed()) return;
      if (const std::string broken = value.broken_rule(); !broken.empty())
        fail(where() + ": " + broken);
    }
  }

  std::size_t left() const { return failed() ? 0 : static_cast<std::size_t>(end_ - at_); }
  bool is_padding() const {
    return left() < 8 && std::all_of(at_, end_, [](std::byte b) { return b == std::byte{0}; });
  }

  // Returns null, and records a failure, if fewer than `bytes` bytes are left in the struct.
  const std::byte* take(std::size_t bytes) {
    if (failed()) return nullptr;
    if (bytes > left()) {
      fail(where() + " is cut off");
      return nullptr;
    }
    return std::exchange(at_, at_ + bytes);
  }
  template <typename T>
  T number() {
    T value{};
    if (const std::byte* bytes = take(sizeof value); bytes != nullptr)
      std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  // Reads a number that must be less than `limit`.
  std::uint32_t below(std::uint32_t limit) {
    const auto value = number<std::uint32_t>();
    if (value < limit) return value;
    fail(where() + " has the unknown value " + std::to_string(value));
    return 0;
  }
  // Reads a count of elements that take 4 bytes or more each.
  std::uint32_t take_count() {
    const auto count = number<std::uint32_t>();
    if (count <= left() / 4) return count;
    fail_claim(count, "elements");
    return 0;
  }
  template <typename T>
  std::span<const T> take_numbers() {
    const auto count = number<std::uint32_t>();
    if (std::uint64_t{count} * sizeof(T) > left()) {
      fail_claim(count, "elements");
      return {};
    }
    return {reinterpret_cast<const T*>(take(count * sizeof(T))), count};
  }
  std::string_view take_text() {
    const std::size_t size = number<std::uint32_t>();
    if (padded(size) > left()) {
      fail_claim(size, "bytes");
      return {};
    }
    return {reinterpret_cast<const char*>(take(padded(size))), size};
  }
  bool require_utf8(std::string_view text) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid == text.size()) return true;
    fail(where() + " is not UTF-8 at byte " + std::to_string(valid));
    return false;
  }
  void fail_claim(std::size_t count, const char* what) {
    fail(where() + " claims " + std::to_string(count) + " " + what + ", and " +
         std::to_string(left()) + " bytes are left");
  }

  // Returns the place for errors, such as "ready.vault.reason".
  std::string where() const {
    std::string path;
    for (const Level* level = level_; level != nullptr; level = level->around) {
      if (level->index >= 0) path = "." + field_name(level->fields, level->index) + path;
    }
    return std::string(message_) + path;
  }
  // Returns the name of a field: field_name("request, whole_text(text)", 1) is "text".
  static std::string field_name(std::string_view fields, int index) {
    for (; index > 0 && fields.find(',') != std::string_view::npos; --index)
      fields.remove_prefix(fields.find(',') + 1);
    std::string_view field = fields.substr(0, fields.find(','));
    if (const std::size_t open = field.find('('); open != std::string_view::npos)
      field = field.substr(open + 1, field.find(')') - open - 1);
    field.remove_prefix(std::min(field.find_first_not_of(' '), field.size()));
    return std::string(field);
  }

  const std::byte* at_;
  const std::byte* end_;
  Trust trust_;
  std::size_t heap_left_;
  std::string failure_;
  std::string_view message_;
  const Level* level_ = nullptr;
};

}  // namespace bulkhead::ipc::wire
