// Settings as YAML, made from the table: the printed reference, config/runtime.yaml, and what a daemon
// runs with.
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "config/access_key.hpp"
#include "config/config.hpp"
#include "config/settings_table.hpp"

namespace bulkhead::config {
namespace {

constexpr const char* kHidden = "(hidden)";

// A scalar that YAML reads back as the same text.
std::string yaml_scalar(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789._/-") == std::string::npos;
  if (plain || text.starts_with('[')) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

// The nested sections of a YAML text, opened as dotted keys ask for them.
class Sections {
 public:
  explicit Sections(std::ostringstream& out) : out_(out) {}

  // The key's last part; indent() is that of its line then.
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

// `write` writes each setting's lines. `write_models` is called between the server's and the rest, where a
// reader looks for the models.
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

std::string keys_without_secrets(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) {
    const Result<AccessKey> key = parse_access_key(text);
    if (!list.empty()) list += ", ";
    if (!key.ok()) {
      list += kHidden;
      continue;
    }
    list += key->name + " " + kHidden;
    const auto limit = [&list](const char* name, std::uint32_t value) {
      if (value != 0) list += " " + std::string(name) + "=" + std::to_string(value);
    };
    limit("requests_per_minute", key->requests_per_minute);
    limit("tokens_per_minute", key->tokens_per_minute);
    limit("streams", key->streams);
  }
  return "[" + list + "]";
}

std::string shown(const Setting& setting, const Settings& settings) {
  if (!setting.secret) return text_of(setting, settings);
  if (wants_list(setting)) return keys_without_secrets(settings.server.keys);
  return text_of(setting, settings).empty() ? "" : kHidden;
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
        out << "\n" << indent << name << ": " << yaml_scalar(text_of(setting, defaults)) << "\n";
      },
      [&] {
        out << "\n# The models to serve, each in worker processes of its own.\nmodels:\n";
        const char* lead = "  - ";
        for (const ModelSetting& field : model_settings_table()) {
          out << lead << "# " << field.help << "\n    " << field.key << ": "
              << yaml_scalar(text_of(field, model)) << "\n";
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
        out << indent << name << ": " << yaml_scalar(shown(setting, settings)) << "\n";
      },
      [&] {
        if (settings.models.empty()) return;
        out << "\nmodels:\n";
        for (const ModelSettings& model : settings.models) {
          const char* lead = "  - ";
          for (const ModelSetting& field : model_settings_table()) {
            out << lead << field.key << ": " << yaml_scalar(text_of(field, model)) << "\n";
            lead = "    ";
          }
        }
      });
  return out.str();
}

}  // namespace bulkhead::config
