#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "worker/sandbox/files.hpp"
#include "worker/sandbox/sandbox.hpp"

namespace bulkhead::worker {
namespace {

namespace fs = std::filesystem;

// Returns the entries of a list with colons, without the empty ones.
std::vector<std::string> entries_of(std::string_view list) {
  std::vector<std::string> entries;
  while (!list.empty()) {
    const std::size_t colon = list.find(':');
    if (colon != 0) entries.emplace_back(list.substr(0, colon));
    list = colon == std::string_view::npos ? "" : list.substr(colon + 1);
  }
  return entries;
}

std::vector<std::string> entries_in(const char* variable) {
  const char* const list = std::getenv(variable);
  return list == nullptr ? std::vector<std::string>() : entries_of(list);
}

constexpr const char* kDriverVariables[] = {"VK_DRIVER_FILES", "VK_ICD_FILENAMES",
                                            "VK_ADD_DRIVER_FILES"};

// Returns the library that a driver's manifest names by a path; none if the loader looks for it by name.
std::optional<fs::path> library_of(const fs::path& manifest) {
  std::ifstream file(manifest);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object() || !json.contains("ICD") || !json["ICD"].is_object()) return std::nullopt;
  const auto found = json["ICD"].find("library_path");
  if (found == json["ICD"].end() || !found->is_string()) return std::nullopt;
  const fs::path library = found->get<std::string>();
  if (!library.has_parent_path()) return std::nullopt;
  return library.is_absolute() ? library : manifest.parent_path() / library;
}

bool lies_in(const fs::path& file, const fs::path& folder) {
  const fs::path relative = file.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace

std::vector<std::string> driver_paths(const std::string& more) {
  std::vector<std::string> paths = {
      "/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/run/opengl-driver", "/sys",
      "/run/udev",
      // Only those files of /etc that loaders and drivers read, because others hold secrets.
      "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
      "/etc/vulkan", "/etc/glvnd", "/etc/drirc", "/etc/nvidia", "/etc/alternatives",
      "/etc/localtime"};
  const auto add = [&paths](std::vector<std::string> entries) {
    for (std::string& entry : entries)
      paths.push_back(std::move(entry));
  };
  add(entries_of(more));
  for (const char* variable : {"LD_LIBRARY_PATH", "VK_LAYER_PATH", "VK_ADD_LAYER_PATH"})
    add(entries_in(variable));
  for (const char* variable : kDriverVariables)
    add(entries_in(variable));
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    for (const char* folder : {"/.local/share/vulkan", "/.config/vulkan", "/.drirc"})
      paths.push_back(std::string(home) + folder);
  }
  add(proc_paths());
  std::error_code ignored;
  const auto program = fs::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) paths.push_back(program.parent_path().string());
  return paths;
}

std::vector<std::string> asked_paths(const std::string& more) {
  std::vector<std::string> paths = entries_of(more);
  for (const char* variable : kDriverVariables) {
    for (std::string& manifest : entries_in(variable)) {
      if (const auto library = library_of(manifest); library) paths.push_back(library->string());
      paths.push_back(std::move(manifest));
    }
  }
  return paths;
}

std::vector<std::string> unreadable_drivers(const std::vector<std::string>& readable) {
  std::vector<std::string> sentences;
  for (const char* variable : kDriverVariables) {
    for (const std::string& manifest : entries_in(variable)) {
      std::error_code missing;
      const std::optional<fs::path> named = library_of(manifest);
      const fs::path library = named ? fs::canonical(*named, missing) : fs::path();
      if (library.empty() || missing) continue;
      bool lies_inside = false;
      for (const std::string& folder : readable) {
        std::error_code absent;
        const fs::path real = fs::canonical(folder, absent);
        lies_inside |= !absent && lies_in(library, real);
      }
      if (lies_inside) continue;
      sentences.push_back(std::string(variable) + " names " + manifest + ", whose driver " +
                          library.string() +
                          " a confined worker may not read; to allow it: --set "
                          "isolation.sandbox_paths=" +
                          library.parent_path().string());
    }
  }
  return sentences;
}

}  // namespace bulkhead::worker
