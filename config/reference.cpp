// Writes settings as YAML from the table: the printed reference, config/runtime.yaml, and the settings that a daemon
// runs with.
#include <algorithm>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "config/access_key.hpp"
#include "config/base/text.hpp"
#include "config/config.hpp"
#include "config/settings_table.hpp"

namespace bulkhead::config {
namespace {

constexpr const char* kHidden = "(hidden)";

// Says whether every reader of YAML 1.1 or 1.2 reads the bare text as this text, and not as a mark of YAML, a
// number, a truth value or null.
bool is_plain(const std::string& text) {
  constexpr std::string_view kDigits = "0123456789";
  constexpr std::string_view kOthers = "._-";
  constexpr std::string_view kFirst = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/";
  constexpr std::string_view kWords[] = {"null", "true", "false", "yes", "no",
                                         "on",   "off",  "y",     "n"};
  const auto in = [](std::string_view set, char c) { return set.find(c) != set.npos; };
  if (text.empty() || std::ranges::find(kWords, lower(text)) != std::end(kWords)) return false;
  if (!std::ranges::all_of(
          text, [&](char c) { return in(kFirst, c) || in(kDigits, c) || in(kOthers, c); }))
    return false;
  // An IP address has three dots, so no reader takes it for a number.
  if (in(kDigits, text.front())) return std::ranges::count(text, '.') == 3;
  return in(kFirst, text.front());
}

// Returns a YAML scalar of this UTF-8 text. The function quotes the text where YAML would otherwise read another
// value, such as a number or a list.
std::string yaml_text(const std::string& text) {
  if (is_plain(text)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\x{:02x}", byte);
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string yaml_list(const std::vector<std::string>& texts) {
  std::vector<std::string> scalars;
  for (const std::string& text : texts)
    scalars.push_back(yaml_text(text));
  return "[" + bulkhead::joined(scalars) + "]";
}

// Returns a field's value in YAML. Numbers, flags and the words of a choice stay without quotes, as
// people write them.
template <typename Owner>
std::string yaml_value(const Field<Owner>& field, const Owner& owner) {
  using Texts = std::vector<std::string>;
  if (const auto* texts = std::get_if<Reach<Owner, Texts>>(&field.reach))
    return yaml_list((*texts)(const_cast<Owner&>(owner)));  // only reads the field
  const bool any_text =
      std::holds_alternative<Reach<Owner, std::string>>(field.reach) && field.choices.empty();
  return any_text ? yaml_text(text_of(field, owner)) : text_of(field, owner);
}

// Writes the headings of a YAML text's nested sections, as dotted keys such as server.http.port
// need them.
class Sections {
 public:
  explicit Sections(std::ostringstream& out) : out_(out) {}

  // Writes the headings of the key's sections that are not open yet, and returns the key's last
  // part. indent() then returns the indentation of the key's line.
  std::string_view enter(std::string_view key) {
    std::vector<std::string> parts;
    for (std::size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.')) {
      parts.emplace_back(key.substr(0, dot));
      key.remove_prefix(dot + 1);
    }
    std::size_t shared = 0;
    while (shared < open_.size() && shared < parts.size() && open_[shared] == parts[shared])
      ++shared;
    for (std::size_t depth = shared; depth < parts.size(); ++depth)
      out_ << "\n" << std::string(2 * depth, ' ') << parts[depth] << ":\n";
    open_ = std::move(parts);
    return key;
  }
  std::string indent() const { return std::string(2 * open_.size(), ' '); }

 private:
  std::ostringstream& out_;
  std::vector<std::string> open_;
};

// Writes all settings. `write` writes the lines of one setting. `write_models` writes the models between the
// server's settings and the rest, where readers look for them.
void write_settings(std::ostringstream& out,
                    const std::function<void(const Setting&, const std::string& indent,
                                             std::string_view name)>& write,
                    const std::function<void()>& write_models) {
  Sections sections(out);
  bool in_server = false;
  for (const Setting& setting : settings_table()) {
    const bool of_server = std::string_view(setting.key).starts_with("server.");
    if (in_server && !of_server) write_models();
    in_server = of_server;
    const std::string_view name = sections.enter(setting.key);
    write(setting, sections.indent(), name);
  }
}

std::vector<std::string> keys_without_secrets(const std::vector<std::string>& texts) {
  std::vector<std::string> shown;
  for (const std::string& text : texts) {
    const Result<AccessKey> key = parse_access_key(text);
    if (!key.ok()) {
      shown.emplace_back(kHidden);
      continue;
    }
    std::string& line = shown.emplace_back(key->name + " " + kHidden);
    const auto limit = [&line](const char* name, std::uint32_t value) {
      if (value != 0) line += " " + std::string(name) + "=" + std::to_string(value);
    };
    limit("requests_per_minute", key->requests_per_minute);
    limit("tokens_per_minute", key->tokens_per_minute);
    limit("streams", key->streams);
  }
  return shown;
}

std::string shown(const Setting& setting, const Settings& settings) {
  if (!setting.secret) return yaml_value(setting, settings);
  if (wants_list(setting)) return yaml_list(keys_without_secrets(settings.server.keys));
  return yaml_text(text_of(setting, settings).empty() ? "" : kHidden);
}

}  // namespace

std::string reference_yaml() {
  std::ostringstream out;
  out << "# Every setting of Bulkhead with its default. Leave out what you don't change. On the "
         "command line:\n"
         "#   bulkheadd --config FILE --set server.port=8080 --set models.0.path=model.gguf\n"
         "# Check a file without starting anything:  bulkhead check --config FILE\n";
  const Settings defaults;
  const ModelSettings model;
  write_settings(
      out,
      [&](const Setting& setting, const std::string& indent, std::string_view name) {
        out << indent << "# " << setting.help;
        if (setting.later) out << " Not in this version yet.";
        if (setting.reload == Reload::kRestart)
          out << " A change takes effect when the daemon restarts.";
        out << "\n" << indent << name << ": " << yaml_value(setting, defaults) << "\n";
      },
      [&] {
        out << "\n# The models to serve, each in worker processes of its own.\nmodels:\n";
        const char* lead = "  - ";
        for (const ModelSetting& field : model_settings_table()) {
          out << lead << "# " << field.help << "\n    " << field.key << ": "
              << yaml_value(field, model) << "\n";
          lead = "    ";
        }
      });
  return out.str();
}

std::string settings_yaml(const Settings& settings) {
  std::ostringstream out;
  write_settings(
      out,
      [&](const Setting& setting, const std::string& indent, std::string_view name) {
        out << indent << name << ": " << shown(setting, settings) << "\n";
      },
      [&] {
        if (settings.models.empty()) return;
        out << "\nmodels:\n";
        for (const ModelSettings& model : settings.models) {
          const char* lead = "  - ";
          for (const ModelSetting& field : model_settings_table()) {
            out << lead << field.key << ": " << yaml_value(field, model) << "\n";
            lead = "    ";
          }
        }
      });
  return out.str();
}

}  // namespace bulkhead::config
