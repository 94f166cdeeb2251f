// Files and texts of settings for tests.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "config/settings_table.hpp"

namespace bulkhead::config {

// A settings file that lives as long as the test.
class File {
 public:
  explicit File(const std::string& text) {
    path_ =
        (std::filesystem::temp_directory_path() / ("bulkhead-config-" + std::to_string(::getpid()) +
                                                   "-" + std::to_string(counter_++) + ".yaml"))
            .string();
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  File(const File&) = delete;
  const std::string& path() const { return path_; }

 private:
  static inline int counter_ = 0;
  std::string path_;
};

// Returns "KEY=TEXT" for each setting.
inline std::vector<std::string> all_texts(const Settings& settings) {
  std::vector<std::string> texts;
  for (const Setting& setting : settings_table()) {
    texts.push_back(std::string(setting.key) + "=" + text_of(setting, settings));
  }
  return texts;
}

}  // namespace bulkhead::config
