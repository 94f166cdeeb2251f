#include "config/access_key.hpp"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

namespace bulkhead::config {

namespace {

constexpr std::size_t kMostNameBytes = 64;

struct Limit {
  std::string_view name;
  std::uint32_t AccessKey::*member;
};
constexpr Limit kLimits[] = {{"requests_per_minute", &AccessKey::requests_per_minute},
                             {"tokens_per_minute", &AccessKey::tokens_per_minute},
                             {"streams", &AccessKey::streams}};

std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = text.find_first_not_of(kBlank);
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find_first_of(kBlank), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kMostNameBytes && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

// The key is a secret, and the user may have written it in place of a name or a limit. So errors
// name a word by its number and do not quote it.
Error unreadable(const std::string& what) {
  return Error(ErrorCode::kInvalidArgument,
               what + "; write NAME KEY requests_per_minute=60 tokens_per_minute=20000 streams=4");
}

}  // namespace

std::string why_never_sent(std::string_view key) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(key, is_control))
    return "has a line's end or another control character, which no client can send";
  if (key.starts_with(' ') || key.ends_with(' '))
    return "begins or ends with a blank, which no client can send";
  return "";
}

Result<AccessKey> parse_access_key(std::string_view text) {
  const std::vector<std::string_view> words = words_of(text);
  if (words.size() < 2) return unreadable("has no name and key");
  if (!is_name(words[0]))
    return unreadable("begins with no name (letters, digits, '.', '_', '-', at most 64)");
  AccessKey key{std::string(words[0]), std::string(words[1])};
  if (const std::string why = why_never_sent(key.key); !why.empty())
    return unreadable("key " + key.name + ": " + why);
  for (std::size_t i = 2; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    const auto limit = std::ranges::find(kLimits, words[i].substr(0, equals), &Limit::name);
    const std::string place = "key " + key.name + ": word " + std::to_string(i + 1);
    if (limit == std::end(kLimits) || equals == std::string_view::npos)
      return unreadable(place + " is no limit");
    const std::string_view value = words[i].substr(equals + 1);
    const auto [end, failure] =
        std::from_chars(value.data(), value.data() + value.size(), key.*limit->member);
    if (failure != std::errc{} || end != value.data() + value.size())
      return unreadable(place + " has no whole number");
  }
  return key;
}

}  // namespace bulkhead::config
