#include "worker/model/template/html_text.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

#include "worker/model/template/characters.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::jinja {
namespace {

struct NamedEntity {
  std::string_view name;  // without its semicolon
  char32_t codes[2];      // the second one may be 0
};

#include "worker/model/template/html_entities.inc"

constexpr std::size_t kLongestName = 32;
constexpr std::size_t kLongestBareName = 6;

// A text's bytes and their origins, which are cut in place.
struct MarkedBytes {
  explicit MarkedBytes(const Text& text) : bytes(text.view()) {
    origins.reserve(bytes.size());
    text.for_runs([this](std::string_view run, Origin origin) {
      origins.append(run.size(), static_cast<char>(origin));
    });
  }
  std::string_view from(std::size_t at) const { return std::string_view(bytes).substr(at); }
  Origin origin(std::size_t at) const { return static_cast<Origin>(origins[at]); }
  void move(std::size_t from, std::size_t to) {
    bytes[to] = bytes[from];
    origins[to] = origins[from];
  }
  void resize(std::size_t size) {
    bytes.resize(size);
    origins.resize(size);
  }

  CountedString bytes;
  CountedString origins;
};

// What is left of a text when a comment is gone may begin another comment. A comment's end may share the dashes of its
// beginning.
void cut_comments(MarkedBytes& text) {
  constexpr std::string_view kBegin = "<!--", kEnd = "-->";
  std::size_t kept = 0;
  bool closed = true;  // the last comment has an end, and so may others
  for (std::size_t at = 0; at < text.bytes.size();) {
    text.move(at++, kept++);
    if (!closed || kept < kBegin.size() ||
        std::string_view(text.bytes).substr(kept - kBegin.size(), kBegin.size()) != kBegin)
      continue;
    const std::string_view rest = text.from(at);
    std::size_t end = rest.find(kEnd);
    closed = end != rest.npos;
    end = closed ? end + kEnd.size() : 0;
    for (const std::size_t shared : {1U, 2U}) {
      if (!rest.starts_with(kEnd.substr(shared))) continue;
      end = kEnd.size() - shared;
      closed = true;
    }
    if (!closed) continue;
    kept -= kBegin.size();
    at += end;
  }
  text.resize(kept);
}

void cut_tags(MarkedBytes& text) {
  std::size_t kept = 0;
  bool closed = true;
  for (std::size_t at = 0; at < text.bytes.size();) {
    if (closed && text.bytes[at] == '<') {
      const std::size_t end = text.bytes.find('>', at);
      closed = end != text.bytes.npos;
      if (closed) {
        at = end + 1;
        continue;
      }
    }
    text.move(at++, kept++);
  }
  text.resize(kept);
}

void join_words(MarkedBytes& text) {
  std::size_t kept = 0;
  bool blank = false;
  for (std::size_t at = 0; at < text.bytes.size();) {
    const model::DecodedChar c = model::decode_char(text.from(at));
    if (is_space(c.code)) {
      blank = kept > 0;
      at += c.bytes;
      continue;
    }
    // The blank had at least one byte, so there is place for the space.
    if (std::exchange(blank, false)) {
      text.bytes[kept] = ' ';
      text.origins[kept++] = static_cast<char>(Origin::kTemplate);
    }
    for (std::size_t i = 0; i < c.bytes; ++i)
      text.move(at++, kept++);
  }
  text.resize(kept);
}

struct Entity {
  char32_t codes[2] = {};  // 0: there is no such character
  std::size_t bytes = 0;   // 0: the text begins with no entity
};

// HTML takes the numbers of Windows' characters for these, and has none for other controls.
Entity numbered_entity(std::uint32_t number, std::size_t bytes) {
  constexpr char32_t kOfWindows[] = {0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021,
                                     0x2C6,  0x2030, 0x160,  0x2039, 0x152,  0x8D,   0x17D,  0x8F,
                                     0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                     0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};
  if (number >= 0x80 && number < 0xA0) return {{kOfWindows[number - 0x80]}, bytes};
  if (number == 0 || number > 0x10FFFF || (number >= 0xD800 && number < 0xE000))
    return {{0xFFFD}, bytes};
  const bool control =
      (number < 0x20 && number != '\t' && number != '\n' && number != '\f' && number != '\r') ||
      number == 0x7F;
  const bool no_character = (number >= 0xFDD0 && number <= 0xFDEF) || (number & 0xFFFE) == 0xFFFE;
  return {{control || no_character ? U'\0' : static_cast<char32_t>(number)}, bytes};
}

Entity numbered_entity_at(std::string_view text) {
  const bool hexadecimal = text.size() > 2 && (text[2] == 'x' || text[2] == 'X');
  const std::size_t begin = hexadecimal ? 3 : 2;
  std::uint32_t number = 0;
  std::size_t at = begin;
  for (; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (hexadecimal ? std::isxdigit(byte) == 0 : std::isdigit(byte) == 0) break;
    const std::uint32_t digit = std::isdigit(byte) != 0 ? byte - '0' : (byte | 0x20U) - 'a' + 10U;
    number = std::min<std::uint32_t>(number * (hexadecimal ? 16 : 10) + digit, 0x110000);
  }
  if (at == begin) return {};
  return numbered_entity(number, at < text.size() && text[at] == ';' ? at + 1 : at);
}

const NamedEntity* entity_named(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kNamedEntities, name, {}, &NamedEntity::name);
  return found != std::end(kNamedEntities) && found->name == name ? found : nullptr;
}

// Returns the entity that `text`, which begins with &, begins with.
Entity entity_at(std::string_view text) {
  if (text.starts_with("&#")) return numbered_entity_at(text);
  const std::string_view name = text.substr(
      1, std::min(text.substr(1, kLongestName).find_first_of("\t\n\f <&#;"), kLongestName));
  const bool ends = text.substr(name.size() + 1).starts_with(';');
  if (const NamedEntity* whole = ends ? entity_named(name) : nullptr)
    return {{whole->codes[0], whole->codes[1]}, name.size() + 2};
  for (std::size_t size = std::min(name.size(), kLongestBareName); size > 1; --size) {
    const std::string_view begin = name.substr(0, size);
    if (!std::ranges::binary_search(kBareEntities, begin)) continue;
    const NamedEntity* bare = entity_named(begin);
    return {{bare->codes[0], bare->codes[1]}, size + 1};
  }
  return {};
}

}  // namespace

Text without_tags(Run& run, const Text& text) {
  run.tick(text.size());
  MarkedBytes left(text);
  cut_comments(left);
  cut_tags(left);
  join_words(left);
  TextBuilder out;
  for (std::size_t at = 0; at < left.bytes.size();) {
    const std::string_view rest = left.from(at);
    const Origin origin = left.origin(at);
    if (const Entity entity = rest[0] == '&' ? entity_at(rest) : Entity(); entity.bytes > 0) {
      for (const char32_t code : entity.codes)
        if (code != 0) out.append(code, origin);
      at += entity.bytes;
      continue;
    }
    const std::size_t next = std::min(rest.find('&', 1), rest.size());
    const std::string_view origins = std::string_view(left.origins).substr(at, next);
    const std::size_t bytes = std::min(origins.find_first_not_of(origins[0]), next);
    out.append(rest.substr(0, bytes), origin);
    at += bytes;
  }
  return out.take();
}

}  // namespace bulkhead::jinja
