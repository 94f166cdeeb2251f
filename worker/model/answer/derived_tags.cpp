#include "worker/model/answer/derived_tags.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "worker/model/answer/json_text.hpp"

namespace bulkhead::model::answer {
namespace {

using Json = nlohmann::ordered_json;

// Words that no template contains.
const std::string kNextKey = "zg8key";
const std::string kNextValue = "Zg8value";

constexpr std::string_view kMarkBegins = "<[";

// A value that is no text, and how templates may write it.
struct Other {
  const char* json;
  std::vector<std::string_view> spellings;
};
const std::vector<Other>& others() {
  static const std::vector<Other> all = {
      {"77451", {"77451"}},
      {"true", {"true", "True"}},
      {"null", {"null", "None"}},
      {R"({"qf7in": 1})", {R"({"qf7in": 1})", R"({"qf7in":1})", "{'qf7in': 1}"}},
      {R"(["qf7in"])", {R"(["qf7in"])", "['qf7in']"}},
  };
  return all;
}

std::string_view common_end_of(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  const auto bytes = static_cast<std::size_t>(end - a.rbegin());
  return a.substr(a.size() - bytes);
}

std::string_view from_first_mark(std::string_view text) {
  const std::size_t at = text.find_first_of(kMarkBegins);
  return at == std::string_view::npos ? std::string_view() : text.substr(at);
}

bool is_blank(char c) {
  return kBlanks.find(c) != std::string_view::npos;
}

// Returns a regular expression that matches this text alone.
std::string matching_only(std::string_view text) {
  constexpr std::string_view kSpecial = "\\.+*?()[]{}|^$";
  std::string out;
  for (const char c : text) {
    if (kSpecial.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// Returns what the template writes between a key and each value that is no text.
std::vector<std::string> before_other_values(const TagProbe& probe, bool lines) {
  std::vector<std::string> all;
  const auto of_text = probe.render({{std::string(probe.key), std::string(probe.value)}});
  if (!of_text) return all;
  const std::string rest = of_text->substr(of_text->find(probe.value) + probe.value.size());
  for (const Other& other : others()) {
    const auto text = probe.render({{std::string(probe.key), Json::parse(other.json)}});
    if (!text || !text->ends_with(rest)) continue;
    const std::size_t key = text->find(probe.key);
    if (key == std::string::npos) continue;
    const std::size_t begin = key + probe.key.size();
    std::string_view between(*text);
    between = between.substr(begin, text->size() - rest.size() - begin);
    for (const std::string_view spelling : other.spellings) {
      if (!between.ends_with(spelling)) continue;
      between.remove_suffix(spelling.size());
      if (lines && between.ends_with('\n')) between.remove_suffix(1);
      all.emplace_back(between);
      break;
    }
  }
  return all;
}

// Derives the attribute that tells a value's type. `to_text`: what stands between a key and a text. `to_others`: what
// stands before values of other types, all of it different from `to_text`.
bool derive_type(std::string_view to_text, const std::vector<std::string>& to_others, Tags& tags) {
  const auto differs = std::ranges::mismatch(to_text, to_others[0]).in1;
  const std::string_view common(to_text.begin(), differs);
  const std::size_t key_end = common.find_first_of(" \n<[", 1);
  if (key_end == std::string_view::npos) return false;
  // What follows the type is the last tag, or the end of the only one.
  const std::size_t last = to_text.find_last_of(kMarkBegins);
  const bool own_tag = last != std::string_view::npos && last > common.size();
  const std::string_view end = to_text.substr(own_tag ? last : to_text.size() - 1);
  std::vector<std::string> types;
  for (const std::string& each : to_others) {
    if (!each.ends_with(end) || !each.starts_with(to_text.substr(0, key_end))) return false;
    std::string type =
        matching_only(std::string_view(each).substr(key_end, each.size() - end.size() - key_end));
    if (std::ranges::find(types, type) == types.end()) types.push_back(std::move(type));
  }
  tags.key_close = to_text.substr(0, key_end);
  tags.type_end = end;
  tags.text_type = to_text.substr(key_end, to_text.size() - end.size() - key_end);
  for (const std::string& type : types)
    tags.other_types += (tags.other_types.empty() ? "" : "|") + type;
  if (types.size() > 1) tags.other_types = "(" + tags.other_types + ")";
  return true;
}

}  // namespace

std::optional<std::size_t> derive_tags(std::string_view text, const TagProbe& probe, Calls& calls) {
  const std::size_t name = text.find(probe.name);
  const std::size_t key = text.find(probe.key, name);
  const std::size_t value = text.find(probe.value, key);
  // A tag that repeats the key at its end has another form.
  if (value == std::string_view::npos || text.find(probe.key, key + 1) != std::string_view::npos)
    return std::nullopt;
  const auto two =
      probe.render({{std::string(probe.key), std::string(probe.value)}, {kNextKey, kNextValue}});
  if (!two) return std::nullopt;
  const std::size_t first = two->find(probe.value), next = two->find(kNextKey, first);
  if (next == std::string::npos) return std::nullopt;
  const std::size_t first_end = first + probe.value.size();
  const std::string_view between = std::string_view(*two).substr(first_end, next - first_end);
  const std::size_t name_end = name + probe.name.size();
  const std::string_view to_key = text.substr(name_end, key - name_end);
  const std::size_t key_end = key + probe.key.size();
  std::string_view to_value = text.substr(key_end, value - key_end);

  const std::string_view open = from_first_mark(common_end_of(between, to_key));
  std::string_view close = between.substr(0, between.size() - open.size());
  Tags& tags = calls.tags;
  tags.strip_newlines = to_value.ends_with('\n') && close.starts_with('\n');
  if (tags.strip_newlines) {
    to_value.remove_suffix(1);
    close.remove_prefix(1);
  }
  if (open.empty() || trimmed(close).empty() || trimmed(to_value).empty()) return std::nullopt;
  // Blanks beside a value would be read as a part of it.
  if (is_blank(to_value.back()) || is_blank(close.front())) return std::nullopt;
  tags.param_open = open;
  tags.value_close = trimmed(close);

  std::vector<std::string> to_others = before_other_values(probe, tags.strip_newlines);
  std::erase(to_others, to_value);
  if (!to_others.empty()) {
    if (!derive_type(to_value, to_others, tags)) return std::nullopt;
  } else if (const std::size_t second = to_value.find_first_of(kMarkBegins, 1);
             second != std::string_view::npos && !trimmed(to_value.substr(0, second)).empty()) {
    tags.key_close = trimmed(to_value.substr(0, second));
    tags.value_open = trimmed(to_value.substr(second));
  } else {
    tags.key_close = to_value;
  }

  calls.syntax = CallSyntax::kTagged;
  const std::string_view ends_name = trimmed(to_key.substr(0, to_key.size() - open.size()));
  if (!ends_name.empty()) calls.name_ends = {std::string(ends_name)};
  const std::size_t closing = text.find(tags.value_close, value);
  if (closing == std::string_view::npos) return std::nullopt;
  return closing + tags.value_close.size();
}

bool close_tagged_call(Calls& calls) {
  if (calls.closers.empty() || calls.opens.empty()) return false;
  // Two marks on lines of their own are two marks, because a model may write them without the line break.
  const std::string open = calls.opens[0], close = calls.closers[0];
  const std::size_t open_line = open.find('\n'), close_line = close.find('\n');
  if (calls.section.empty() && open_line != std::string::npos && close_line != std::string::npos) {
    calls.section = trimmed(open.substr(0, open_line));
    calls.opens = {open.substr(std::min(open.find_first_not_of(kBlanks, open_line), open.size()))};
    calls.closers = {std::string(trimmed(close.substr(0, close_line))),
                     std::string(trimmed(close.substr(close_line)))};
  }
  calls.tags.call_close = calls.closers[0];
  if (calls.name_ends.empty())
    calls.name_stops = {"\n", calls.tags.param_open, calls.tags.call_close};
  return true;
}

}  // namespace bulkhead::model::answer
