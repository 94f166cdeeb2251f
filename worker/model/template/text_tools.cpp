#include "worker/model/template/text_tools.hpp"

#include <algorithm>

#include "worker/model/template/characters.hpp"
#include "worker/model/template/python.hpp"

namespace bulkhead::jinja {

std::size_t find_text(Run& run, std::string_view text, std::string_view sought, std::size_t from) {
  if (sought.size() <= 1) {
    const std::size_t at = text.find(sought, from);
    run.tick(scan_steps(std::min(at, text.size()) - std::min(from, text.size())));
    return at;
  }
  const std::uint64_t steps_to_compare = 1 + copy_steps(sought.size());
  while (from < text.size() && text.size() - from >= sought.size()) {
    const std::size_t at = text.find(sought.front(), from);
    run.tick(steps_to_compare + scan_steps(std::min(at, text.size()) - from));
    if (at == text.npos || text.size() - at < sought.size()) break;
    if (text.substr(at, sought.size()) == sought) return at;
    from = at + 1;
  }
  return text.npos;
}

std::size_t rfind_text(Run& run, std::string_view text, std::string_view sought, std::size_t from) {
  if (sought.size() > text.size()) return text.npos;
  from = std::min(from, text.size() - sought.size());
  if (sought.empty()) return from;
  const std::uint64_t steps_to_compare = 1 + copy_steps(sought.size());
  for (;;) {
    const std::size_t at = text.rfind(sought.front(), from);
    run.tick(steps_to_compare + scan_steps(at == text.npos ? from : from - at));
    if (at == text.npos) return at;
    if (text.substr(at, sought.size()) == sought) return at;
    if (at == 0) return text.npos;
    from = at - 1;
  }
}

Text replaced(Run& run, const Text& text, const Text& old, const Text& replacement,
              std::int64_t count) {
  const std::string_view view = text.view();
  run.tick(scan_steps(view.size()));
  TextBuilder out;
  std::size_t done = 0;
  const auto put = [&](std::size_t at) {
    run.tick(1 + copy_steps(replacement.size()));
    out.append(text.sub(done, at - done));
    out.append(replacement);
  };
  if (old.empty()) {  // before every character, and at the end
    std::size_t at = 0;
    for (; count != 0 && at <= view.size(); --count) {
      put(at);
      done = at;
      if (at == view.size()) break;
      at += model::decode_char(view.substr(at)).bytes;
    }
  } else {
    for (std::size_t at = find_text(run, view, old.view()); at != view.npos && count != 0;
         at = find_text(run, view, old.view(), done), --count) {
      put(at);
      done = at + old.size();
    }
    if (done == 0) return text;
  }
  out.append(text.sub(done));
  return out.take();
}

Text escaped_html(Run& run, const Text& text) {
  run.tick(text.size() / 4);
  TextBuilder out;
  text.for_runs([&out](std::string_view part, Origin origin) {
    for (const char c : part) {
      const std::string_view entity = c == '&'    ? "&amp;"
                                      : c == '<'  ? "&lt;"
                                      : c == '>'  ? "&gt;"
                                      : c == '"'  ? "&#34;"
                                      : c == '\'' ? "&#39;"
                                                  : std::string_view();
      out.append(entity.empty() ? std::string_view(&c, 1) : entity, origin);
    }
  });
  return out.take();
}

Text word_case(const Text& word) {
  const std::size_t first = char_offset(word, 1);
  TextBuilder out;
  out.append(with_case(word.sub(0, first), Case::kUpper));
  out.append(with_case(word.sub(first), Case::kLower));
  return out.take();
}

Text capitalized(const Text& text) {
  return word_case(text);
}

Text padded(Run& run, const Text& text, std::int64_t width, const Text& fill,
            std::size_t left_share) {
  const auto size = static_cast<std::int64_t>(char_count(text));
  if (width <= size) return text;
  const auto missing = static_cast<std::size_t>(width - size);
  charge_memory(missing * fill.size());
  refund_memory(missing * fill.size());
  run.tick(missing / 4);
  // If the width is odd, str.center puts the extra blank on the left.
  std::size_t left = left_share == 2 ? missing : left_share == 0 ? 0 : missing / 2;
  if (left_share == 1) left += missing & static_cast<std::size_t>(width) & 1;
  TextBuilder out;
  for (std::size_t i = 0; i < left; ++i)
    out.append(fill);
  out.append(text);
  for (std::size_t i = left; i < missing; ++i)
    out.append(fill);
  return out.take();
}

Text joined(Run& run, const Text& separator, const List& items) {
  TextBuilder out;
  for (std::size_t i = 0; i < items.items.size(); ++i) {
    run.tick(1 + copy_steps(separator.size()));
    if (i > 0) out.append(separator);
    append_str(run, items.items[i], out);
  }
  return out.take();
}

List* split_lines(Run& run, const Text& text, bool keep_ends) {
  run.tick(scan_steps(text.size()));
  List* lines = run.heap().list();
  const std::string_view view = text.view();
  std::size_t begin = 0;
  std::size_t skip_to = 0;
  for_chars(view, [&](char32_t code, std::size_t at, std::size_t bytes) {
    if (at < skip_to) return;
    const bool ends = (code >= '\n' && code <= '\r') || (code >= 0x1c && code <= 0x1e) ||
                      code == 0x85 || code == 0x2028 || code == 0x2029;
    if (!ends) return;
    std::size_t next = at + bytes;
    if (code == '\r' && next < view.size() && view[next] == '\n') ++next;
    lines->items.emplace_back(text.sub(begin, (keep_ends ? next : at) - begin));
    begin = skip_to = next;
  });
  if (begin < view.size()) lines->items.emplace_back(text.sub(begin));
  return lines;
}

}  // namespace bulkhead::jinja
