// Small operations on texts that several places need.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bulkhead {

// Makes ASCII letters lower case and leaves everything else as it is, whatever the locale.
inline std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// "a, b, c"
inline std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts)
    text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace bulkhead
