#include "tools/cli/table.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "config/base/clean_text.hpp"
#include "tools/cli/columns.hpp"

namespace bulkhead::cli {

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.empty() ? 0 : rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i)
      widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += row[i];
      if (i + 1 < widths.size()) text += std::string(widths[i] - columns_of(row[i]) + 2, ' ');
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
