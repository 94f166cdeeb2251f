#include "config/setting_names.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "config/config.hpp"

namespace bulkhead::config {
namespace {

// Returns the number of edits (insert, delete, replace, swap neighbours) that turn one text into the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_previous, previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before_previous[j - 2] + 1);
      }
    }
    before_previous = previous;
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::string_view last_part(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

// Returns every key and section; `models.0.` stands for any entry of models[].
std::vector<std::string> known_names(const std::string& model_prefix) {
  std::set<std::string> names = {"models"};
  for (const Setting& setting : settings_table()) {
    const std::string_view key = setting.key;
    names.emplace(key);
    for (std::size_t dot = key.find('.'); dot != std::string_view::npos;
         dot = key.find('.', dot + 1)) {
      names.emplace(key.substr(0, dot));
    }
  }
  for (const ModelSetting& setting : model_settings_table())
    names.insert(model_prefix + setting.key);
  return {names.begin(), names.end()};
}

}  // namespace

std::string nearest_name(const std::string& mistyped, const std::string& model_prefix) {
  constexpr std::size_t kWrongSection = 3;
  std::string best;
  std::size_t best_distance = SIZE_MAX;
  for (const std::string& name : known_names(model_prefix)) {
    const bool section_left_out = name.ends_with("." + mistyped);
    const std::size_t distance =
        section_left_out
            ? 0
            : std::min(edit_distance(mistyped, name),
                       edit_distance(last_part(mistyped), last_part(name)) + kWrongSection);
    if (distance < best_distance || (section_left_out && name.size() < best.size())) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string key_meant_by(std::string_view name) {
  const auto plain = [](std::string text) {
    for (char& c : text)
      if (c == '-' || c == '.') c = '_';
    return text;
  };
  const std::string wanted = plain(std::string(name));
  std::vector<std::string> found;
  for (const std::string& key : known_names("models.0.")) {
    if (is_section(key) || key == "models") continue;
    if (plain(key) == wanted) return key;
    if (last_part(key) == wanted) found.push_back(key);
  }
  return found.size() == 1 ? found.front() : std::string();
}

const Setting* find_setting(std::string_view key) {
  for (const Setting& setting : settings_table()) {
    if (key == setting.key) return &setting;
  }
  return nullptr;
}

const ModelSetting* find_model_setting(std::string_view key) {
  for (const ModelSetting& setting : model_settings_table()) {
    if (key == setting.key) return &setting;
  }
  return nullptr;
}

const RetiredSetting* find_retired_setting(std::string_view key) {
  for (const RetiredSetting& setting : retired_settings()) {
    if (key == setting.key) return &setting;
  }
  return nullptr;
}

bool is_section(const std::string& name) {
  const std::string prefix = name + ".";
  return std::any_of(settings_table().begin(), settings_table().end(), [&](const Setting& setting) {
    return std::string_view(setting.key).starts_with(prefix);
  });
}

}  // namespace bulkhead::config
