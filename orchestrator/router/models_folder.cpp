#include "orchestrator/router/models_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include "config/base/clean_text.hpp"
#include "config/base/log.hpp"
#include "config/base/text.hpp"
#include "config/model_name.hpp"
#include "ipc/utf8.hpp"

namespace bulkhead::orchestrator {

namespace {

namespace fs = std::filesystem;

constexpr int kMostDepth = 4;
constexpr std::size_t kMostModels = 1000;
constexpr std::string_view kFirstPart = "-00001-of-";
constexpr std::size_t kPartDigits = 5;

// Returns the path in normal form, so that one file has one name however the folder was given.
std::string normal(const fs::path& path) {
  return path.lexically_normal().string();
}

bool all_digits(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Returns the file's name without its ending; empty if the file is no model, or a later part of a
// split one.
std::string name_of(const fs::path& file) {
  const std::string name = file.filename().string();
  if (lower(file.extension().string()) != ".gguf" || name.starts_with('.') ||
      lower(name).starts_with("mmproj"))
    return "";
  const std::string stem = file.stem().string();
  const std::size_t part_size = kFirstPart.size() + kPartDigits;
  const std::size_t base_size = stem.size() > part_size ? stem.size() - part_size : stem.size();
  const std::string_view part = std::string_view(stem).substr(base_size);  // "-00001-of-00002"
  const bool split = !part.empty() && part[0] == '-' && all_digits(part.substr(1, kPartDigits)) &&
                     part.substr(1 + kPartDigits, 4) == "-of-" &&
                     all_digits(part.substr(kFirstPart.size()));
  if (!split) return stem;
  return part.starts_with(kFirstPart) ? stem.substr(0, base_size) : "";
}

}  // namespace

Status add_models_of_folder(config::Loaded& loaded) {
  config::Settings& settings = loaded.settings;
  if (settings.server.models_folder.empty()) return {};
  const std::string folder = normal(settings.server.models_folder);
  std::error_code error;
  const auto unreadable = [&] {
    return Error(ErrorCode::kNotFound,
                 "server.models_folder: " + folder + " can't be read: " + error.message());
  };
  // Folders below this one are skipped where they may not be read; this one must be readable.
  (void)fs::directory_iterator(folder, error);
  fs::recursive_directory_iterator entries;
  if (!error) {
    entries = fs::recursive_directory_iterator(folder,
                                               fs::directory_options::skip_permission_denied |
                                                   fs::directory_options::follow_directory_symlink,
                                               error);
  }
  if (error) return unreadable();
  const auto leave_out = [&loaded](std::string words) {
    loaded.notices.push_back({"server.models_folder", std::move(words)});
  };
  std::vector<fs::path> files;
  for (; entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    if (entries.depth() + 1 >= kMostDepth) entries.disable_recursion_pending();
    std::error_code unknown;
    if (name_of(entries->path()).empty() || !entries->is_regular_file(unknown)) continue;
    if (!ipc::is_utf8(
            entries->path().string())) {  // JSON can't hold its name, so nobody could ask for it
      leave_out(cleaned(entries->path().string()) + " is left out: its name is not UTF-8");
      continue;
    }
    if (files.size() == kMostModels) {
      leave_out(
          fmt::format("{} has more than {} models; the others are left out", folder, kMostModels));
      break;
    }
    files.push_back(entries->path());
  }
  if (error) return unreadable();  // models that are only out of sight must not be removed
  // Files nearest to the folder get their names first.
  std::ranges::sort(files, {}, [](const fs::path& file) {
    return std::pair(std::distance(file.begin(), file.end()), file);
  });
  std::set<std::string> names, paths;
  for (const config::ModelSettings& model : settings.models) {
    names.insert(config::name_of(model));
    names.insert(model.aliases.begin(), model.aliases.end());
    paths.insert(normal(model.path));
  }
  for (const fs::path& file : files) {
    if (paths.contains(file.string())) continue;
    settings.models.push_back(model_of_file(folder, file.string(), names));
    names.insert(settings.models.back().name);
  }
  // The built-in model would answer every request, whatever model it names: the folder may not be mounted yet.
  if (settings.models.empty()) {
    return Error(ErrorCode::kNotFound,
                 "server.models_folder: " + folder +
                     " has no GGUF file; put one there, or name a model in `models` (path: builtin "
                     "is one, too)");
  }
  return {};
}

Result<std::string> file_in_folder(const std::string& folder, const std::string& name) {
  const auto unknown = [&](const std::string& why) {
    return Error(ErrorCode::kNotFound, fmt::format("The model '{}' does not exist{}.", name, why));
  };
  if (folder.empty()) return unknown("");
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(name, is_control)) return unknown("; its name has control characters");
  // Symbolic links in the folder are followed, because the person who put them there means the
  // files that they lead to.
  fs::path file = (fs::path(folder) / name).lexically_normal();  // an absolute name stays that
  if (lower(file.extension().string()) != ".gguf")
    file += ".gguf";  // as models are listed without it
  const fs::path inside = file.lexically_relative(normal(folder));
  if (inside.empty() || *inside.begin() == ".." || name_of(file).empty())
    return unknown("; it names no GGUF file in server.models_folder");
  return file.string();
}

config::ModelSettings model_of_file(const std::string& folder, const std::string& file,
                                    const std::set<std::string>& taken) {
  config::ModelSettings model;
  model.path = file;
  model.load = config::Load::kFirstUse;
  model.name = name_of(file);
  if (taken.contains(model.name))
    model.name = fs::path(file).lexically_relative(normal(folder)).string();
  return model;
}

}  // namespace bulkhead::orchestrator
