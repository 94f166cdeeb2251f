#include "tools/cli/table.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "config/base/clean_text.hpp"

namespace bulkhead::cli {

namespace {

// Returns how many characters the UTF-8 text has: all bytes but those that continue one.
std::size_t characters_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::size_t width = 0;
      for (const auto& other : rows)
        width = std::max(width, characters_of(other[i]));
      text += row[i];
      if (i + 1 < row.size()) text += std::string(width - characters_of(row[i]) + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

std::string cell(const std::string& text) {
  std::string plain = cleaned(text);
  std::ranges::replace(plain, '\t', ' ');
  return plain.empty() ? "-" : plain;
}

std::string cell_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "-";
  if (found->is_string()) return cell(found->get<std::string>());
  if (!found->is_array()) return cell(found->dump());
  std::string all;
  for (const nlohmann::json& each : *found) {
    if (each.is_string()) all += (all.empty() ? "" : ",") + cell(each.get<std::string>());
  }
  return all.empty() ? "-" : all;
}

std::string device_cell(const nlohmann::json& worker) {
  const std::string name = cell_of(worker, "device"), asked = cell_of(worker, "device_asked");
  if (asked == "-" || asked == "auto") return name;
  return name == "-" ? asked : name + " (" + asked + ")";
}

std::string url_encoded(const std::string& text) {
  std::string result;
  char escaped[4];
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_' || c == '.' || c == '~') {
      result += c;
    } else {
      std::snprintf(escaped, sizeof escaped, "%%%02X", byte);
      result += escaped;
    }
  }
  return result;
}

}  // namespace bulkhead::cli
