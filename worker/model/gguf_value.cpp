#include "worker/model/gguf_value.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

namespace bulkhead::model {
namespace {

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::string number_text(const Number& number) {
  if (const auto* u = std::get_if<std::uint64_t>(&number)) return std::to_string(*u);
  if (const auto* i = std::get_if<std::int64_t>(&number)) return std::to_string(*i);
  if (const auto* d = std::get_if<double>(&number)) {
    char buffer[40];
    // float32 values print as short as they round-trip: 1e-05, not 9.99999974737875e-06
    const auto end = static_cast<double>(static_cast<float>(*d)) == *d
                         ? std::to_chars(buffer, buffer + sizeof buffer, static_cast<float>(*d)).ptr
                         : std::to_chars(buffer, buffer + sizeof buffer, *d).ptr;
    return std::string(buffer, end);
  }
  return "?";
}

// Returns the text in printable form, on one line, shortened.
std::string string_text(std::string_view text, std::size_t shown) {
  std::string out = "\"";
  std::size_t end = std::min(text.size(), shown);
  // A character must not be cut in two.
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      static constexpr char kHex[] = "0123456789abcdef";
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += c;
    }
  }
  return out + (end < text.size() ? "...\"" : "\"");
}

}  // namespace

Number number_at(ValueType type, const std::byte* at) {
  switch (type) {
    case ValueType::kUint8:
      return std::uint64_t{load<std::uint8_t>(at)};
    case ValueType::kUint16:
      return std::uint64_t{load<std::uint16_t>(at)};
    case ValueType::kUint32:
      return std::uint64_t{load<std::uint32_t>(at)};
    case ValueType::kUint64:
      return load<std::uint64_t>(at);
    case ValueType::kInt8:
      return std::int64_t{load<std::int8_t>(at)};
    case ValueType::kInt16:
      return std::int64_t{load<std::int16_t>(at)};
    case ValueType::kInt32:
      return std::int64_t{load<std::int32_t>(at)};
    case ValueType::kInt64:
      return load<std::int64_t>(at);
    case ValueType::kFloat32:
      return double{load<float>(at)};
    case ValueType::kFloat64:
      return load<double>(at);
    case ValueType::kBool:
    case ValueType::kString:
    case ValueType::kArray:
      break;
  }
  return std::monostate{};
}

std::string type_text(const MetadataValue& value) {
  if (value.type != ValueType::kArray) return to_string(value.type);
  return std::string("array of ") + to_string(value.element) + ", " + std::to_string(value.count) +
         " elements";
}

std::string value_text(const MetadataValue& value) {
  constexpr std::size_t kShownBytes = 120;
  constexpr std::uint64_t kShownElements = 6;
  switch (value.type) {
    case ValueType::kBool:
      return value.payload[0] == std::byte{0} ? "false" : "true";
    case ValueType::kString:
      return string_text(
          {reinterpret_cast<const char*>(value.payload.data()), value.payload.size()}, kShownBytes);
    case ValueType::kUint8:
    case ValueType::kUint16:
    case ValueType::kUint32:
    case ValueType::kUint64:
    case ValueType::kInt8:
    case ValueType::kInt16:
    case ValueType::kInt32:
    case ValueType::kInt64:
    case ValueType::kFloat32:
    case ValueType::kFloat64:
      return number_text(number_at(value.type, value.payload.data()));
    case ValueType::kArray:
      break;
  }
  std::string out = "[";
  const std::uint64_t shown = std::min(value.count, kShownElements);
  if (value.element == ValueType::kArray) {
    out += value.count == 0 ? "" : "...";
    return out + "]";
  }
  if (value.element == ValueType::kString) {
    MetadataValue first = value;
    first.count = shown;
    for_each_string(first, [&out](std::string_view text) {
      constexpr std::size_t kShownInArray = 24;
      out += (out.size() > 1 ? ", " : "") + string_text(text, kShownInArray);
    });
  } else {
    for (std::uint64_t i = 0; i < shown; ++i) {
      const std::byte* at = value.payload.data() + i * scalar_bytes(value.element);
      if (i > 0) out += ", ";
      out += value.element == ValueType::kBool ? (*at == std::byte{0} ? "false" : "true")
                                               : number_text(number_at(value.element, at));
    }
  }
  return out + (shown < value.count ? ", ...]" : "]");
}

}  // namespace bulkhead::model
