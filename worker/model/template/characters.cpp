#include "worker/model/template/characters.hpp"

#include <algorithm>
#include <array>
#include <memory>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace bulkhead::jinja {
namespace {

struct FreePattern {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using Pattern = std::unique_ptr<pcre2_code, FreePattern>;

Pattern compiled(const char* source) {
  int error = 0;
  PCRE2_SIZE at = 0;
  return Pattern(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source), PCRE2_ZERO_TERMINATED,
                               PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL, &error, &at, nullptr));
}

// Ordered as CharKind.
constexpr const char* kPatterns[] = {
    R"(\p{L})",
    R"([\p{Lu}\x{2160}-\x{216F}\x{24B6}-\x{24CF}])",
    R"([\p{Ll}\x{AA}\x{BA}\x{2170}-\x{217F}\x{24D0}-\x{24E9}])",
    R"(\p{Lt})",
    R"(\p{Nd})",
    R"(\p{N})",
    R"([\p{C}\p{Z}])",
};

bool matches(const pcre2_code* code, std::string_view text) {
  thread_local const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  if (code == nullptr || data == nullptr) return false;
  return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                     PCRE2_ANCHORED, data.get(), nullptr) >= 0;
}

bool ascii_kind(char32_t code, CharKind kind) {
  const bool upper = code >= 'A' && code <= 'Z';
  const bool lower = code >= 'a' && code <= 'z';
  const bool digit = code >= '0' && code <= '9';
  switch (kind) {
    case CharKind::kLetter:
      return upper || lower;
    case CharKind::kUpper:
      return upper;
    case CharKind::kLower:
      return lower;
    case CharKind::kTitle:
      return false;
    case CharKind::kDecimal:
    case CharKind::kNumber:
      return digit;
    case CharKind::kUnprintable:
      return code < 0x20 || code == 0x7f;
  }
  return false;
}

// PCRE2's substitution changes the case of the whole text at once.
std::string past_ascii_with_case(std::string_view text, Case to) {
  static const Pattern all = compiled("(.+)");
  const char* replacement = to == Case::kUpper ? "\\U$1" : "\\L$1";
  std::string out(4 * text.size() + 16, '\0');
  PCRE2_SIZE size = out.size();
  const int count = pcre2_substitute(
      all.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
      PCRE2_SUBSTITUTE_EXTENDED, nullptr, nullptr, reinterpret_cast<PCRE2_SPTR>(replacement),
      PCRE2_ZERO_TERMINATED, reinterpret_cast<PCRE2_UCHAR*>(out.data()), &size);
  if (count < 0) return std::string(text);
  out.resize(size);
  return out;
}

}  // namespace

std::size_t char_count(const Text& text) {
  if (text.ascii()) return text.size();
  Run::tick_of_thread(scan_steps(text.size()));
  const std::string_view view = text.view();
  return static_cast<std::size_t>(std::count_if(view.begin(), view.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::size_t char_offset(const Text& text, std::size_t index) {
  if (text.ascii()) return std::min(index, text.size());
  const std::string_view view = text.view();
  for (std::size_t at = 0; at < view.size(); ++at) {
    if ((static_cast<unsigned char>(view[at]) & 0xc0) == 0x80) continue;
    if (index-- > 0) continue;
    Run::tick_of_thread(scan_steps(at));
    return at;
  }
  Run::tick_of_thread(scan_steps(view.size()));
  return view.size();
}

Text char_slice(const Text& text, std::size_t from, std::size_t to) {
  if (to <= from) return {};
  const std::size_t begin = char_offset(text, from);
  const Text rest = text.sub(begin);
  return rest.sub(0, char_offset(rest, to - from));
}

bool is_kind(char32_t code, CharKind kind) {
  if (code < 0x80) return ascii_kind(code, kind);
  Run::tick_of_thread(1);
  static const auto patterns = [] {
    std::array<Pattern, std::size(kPatterns)> made;
    std::transform(std::begin(kPatterns), std::end(kPatterns), made.begin(), compiled);
    return made;
  }();
  std::string bytes;
  model::append_utf8(bytes, code);
  return matches(patterns[static_cast<std::size_t>(kind)].get(), bytes);
}

bool is_space(char32_t code) {
  if (code < 0x80)
    return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x1f);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

std::string with_case(std::string_view text, Case to) {
  const bool ascii = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  std::string out(text);
  if (ascii) {
    for (char& c : out) {
      if (to == Case::kUpper && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
      if (to == Case::kLower && c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    }
    return out;
  }
  constexpr std::string_view kSharpS = "\u00DF";
  if (to == Case::kUpper)
    for (std::size_t at = out.find(kSharpS); at != out.npos; at = out.find(kSharpS, at))
      out.replace(at, kSharpS.size(), "SS");
  return past_ascii_with_case(out, to);
}

Text with_case(const Text& text, Case to) {
  TextBuilder out;
  text.for_runs([&](std::string_view bytes, Origin origin) {
    Run::tick_of_thread(1 + (text.ascii() ? scan_steps(bytes.size()) : bytes.size()));
    out.append(with_case(bytes, to), origin);
  });
  return out.take();
}

namespace {

template <typename Takes>
Text stripped_of(const Text& text, Side side, const Takes& takes) {
  const std::string_view view = text.view();
  std::size_t begin = 0;
  std::size_t end = view.size();
  while (side != Side::kRight && begin < end) {
    const model::DecodedChar c = model::decode_char(view.substr(begin));
    if (!takes(c.code, view.substr(begin, c.bytes))) break;
    begin += c.bytes;
  }
  while (side != Side::kLeft && end > begin) {
    std::size_t at = end - 1;
    while (at > begin && (static_cast<unsigned char>(view[at]) & 0xc0) == 0x80)
      --at;
    const model::DecodedChar c = model::decode_char(view.substr(at, end - at));
    if (!takes(c.code, view.substr(at, end - at))) break;
    end = at;
  }
  return text.sub(begin, end - begin);
}

}  // namespace

Text stripped(const Text& text, Side side) {
  return stripped_of(text, side, [](char32_t code, std::string_view) { return is_space(code); });
}

Text stripped(Run& run, const Text& text, Side side, std::string_view strip) {
  return stripped_of(text, side, [&run, strip](char32_t, std::string_view bytes) {
    run.tick(1 + scan_steps(strip.size()));
    return strip.find(bytes) != strip.npos;
  });
}

}  // namespace bulkhead::jinja
