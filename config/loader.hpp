// Loads settings from files and assignments. Shared by config.cpp, which reads them, and checks.cpp, which checks the
// rules.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "config/config.hpp"
#include "config/setting_names.hpp"
#include "config/settings_table.hpp"

namespace YAML {
class Node;
}

namespace bulkhead::config {

// Joins "where: key: message" and leaves out empty parts.
Error wrong(const std::string& where, const std::string& key, const std::string& message);

// Remembers where each key was last set, so that the checks at the end can say it.
class Loader {
 public:
  Status read_file(const std::string& path);
  Status assign(std::string_view assignment);
  // Checks the rules between keys, and adds notices for settings that are allowed but surprising. `key_given`: see
  // Sources.
  Status check(bool key_given);
  Loaded take() && {
    for (const auto& [key, where] : origins_)
      loaded_.given.push_back(key);
    return std::move(loaded_);
  }
  Settings& settings() { return loaded_.settings; }

 private:
  Status check_host() const;
  Status check_path(const std::string& path, const std::string& key) const;
  Status check_server() const;
  Status check_gpu() const;
  Status check_isolation() const;
  Status check_models() const;
  Status check_split(const ModelSettings& model, const std::string& prefix) const;
  Status check_devices(const ModelSettings& model, const std::string& prefix) const;
  void add_notices(bool key_given);
  Status read_section(const std::string& path, const std::string& prefix, const YAML::Node& node);
  Status read_models(const std::string& path, const YAML::Node& node);
  Result<Written> read_value(const std::string& where, const std::string& key,
                             const YAML::Node& node);
  void notice(const std::string& key, const std::string& message) {
    loaded_.notices.push_back({origin(key), key + ": " + message});
  }
  // Adds the notice once, however often the setting is given.
  void tell_retired(const std::string& where, const RetiredSetting& setting) {
    if (origins_.emplace(setting.key, where).second) notice(setting.key, setting.why);
  }
  std::string origin(const std::string& key) const {
    const auto found = origins_.find(key);
    return found == origins_.end() ? std::string("default") : found->second;
  }
  // Returns where the user set the first of these keys that is set; an error about several keys points there.
  std::string origin_of(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      if (origins_.contains(key)) return origin(key);
    }
    return "default";
  }

  Loaded loaded_;
  std::map<std::string, std::string> origins_;
};

}  // namespace bulkhead::config
