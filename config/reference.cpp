// The printed reference, config/runtime.yaml, made from the table.
#include <sstream>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "config/settings_table.hpp"

namespace bulkhead::config {
namespace {

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

}  // namespace

std::string reference_yaml() {
  std::ostringstream out;
  out << "# Every setting of Bulkhead with its default. Leave out what you don't change. On the "
         "command line:\n"
         "#   bulkheadd --config FILE --set server.port=8080 --set models.0.path=model.gguf\n"
         "# Check a file without starting anything:  bulkhead check --config FILE\n";
  const Settings defaults;
  const ModelSettings model;

  std::vector<std::string> open;  // the sections that the last key lies in
  for (const Setting& setting : settings_table()) {
    std::vector<std::string> parts;
    std::string_view key = setting.key;
    for (std::size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.')) {
      parts.emplace_back(key.substr(0, dot));
      key.remove_prefix(dot + 1);
    }
    std::size_t shared = 0;
    while (shared < open.size() && shared < parts.size() && open[shared] == parts[shared])
      ++shared;
    for (std::size_t depth = shared; depth < parts.size(); ++depth) {
      out << "\n" << std::string(2 * depth, ' ') << parts[depth] << ":\n";
    }
    open = parts;
    const std::string indent(2 * parts.size(), ' ');
    out << indent << "# " << setting.help;
    if (setting.later) out << " Not in this version yet.";
    out << "\n" << indent << key << ": " << yaml_scalar(text_of(setting, defaults)) << "\n";

    // The models come after the server, where a reader looks for them.
    if (&setting + 1 != settings_table().data() + settings_table().size() && parts[0] == "server" &&
        !std::string_view((&setting + 1)->key).starts_with("server.")) {
      out << "\n# The models to serve, each in worker processes of its own.\nmodels:\n";
      const char* lead = "  - ";
      for (const ModelSetting& field : model_settings_table()) {
        out << lead << "# " << field.help << "\n    " << field.key << ": "
            << yaml_scalar(text_of(field, model)) << "\n";
        lead = "    ";
      }
    }
  }
  return out.str();
}

}  // namespace bulkhead::config
