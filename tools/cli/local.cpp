// `bulkhead check` and `bulkhead bench`: the subcommands that need neither a daemon nor a model.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "config/config.hpp"
#include "tools/cli/commands.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

// Says what a running daemon would say about this file at SIGHUP, as far as that is known without the daemon.
void put_reload_notes(const config::Loaded& loaded) {
  const std::string refused = ": a running daemon refuses this at SIGHUP";
  for (const config::Notice& notice : loaded.unfit_for_reload)
    put(notice.where + ": note" + refused + ": " + notice.message + "\n");
  if (loaded.settings.models.empty() && loaded.settings.server.models_folder.empty())
    put("note" + refused + " if it serves models: there are none here\n");
  const bool key_given =
      std::find(loaded.given.begin(), loaded.given.end(), "server.api_key") != loaded.given.end();
  if (!key_given)
    put("note" + refused +
        " if it has an API key: there is no server.api_key here (\"\" would take it away)\n");
}

// Says which files and folders of the settings can't be used from here. That is no error, because the daemon may run
// elsewhere or later.
std::vector<config::Notice> path_notes(const config::Settings& settings) {
  std::vector<config::Notice> notes;
  const std::string unreadable = " can't be read from here now";
  for (std::size_t i = 0; i < settings.models.size(); ++i) {
    const std::string& path = settings.models[i].path;
    if (path != "builtin" && ::access(path.c_str(), R_OK) != 0)
      notes.push_back({"models." + std::to_string(i) + ".path", path + unreadable});
  }
  std::error_code code;
  const std::string& folder = settings.server.models_folder;
  const bool is_other =
      std::filesystem::exists(folder, code) && !std::filesystem::is_directory(folder, code);
  if (is_other)
    notes.push_back({"server.models_folder", folder + " is not a folder"});
  else if (!folder.empty() && ::access(folder.c_str(), R_OK | X_OK) != 0)
    notes.push_back({"server.models_folder", folder + unreadable});
  const std::filesystem::path journal = settings.isolation.journal_path;
  if (journal.empty()) return notes;
  const std::filesystem::path parent = journal.has_parent_path() ? journal.parent_path() : ".";
  if (std::filesystem::is_directory(journal, code))
    notes.push_back({"isolation.journal_path", journal.string() + " is a folder; name a file"});
  else if (!std::filesystem::is_directory(parent, code))
    notes.push_back({"isolation.journal_path", "there is no folder " + parent.string() + " now"});
  return notes;
}

// Names what a daemon with these settings serves.
std::string served_by(const config::Settings& settings) {
  std::string all;
  const auto add = [&all](const std::string& what) { all += (all.empty() ? "" : ", ") + what; };
  for (const config::ModelSettings& model : settings.models)
    add(model.path == "builtin" ? "the built-in model" : model.path);
  const std::string& folder = settings.server.models_folder;
  if (!folder.empty()) add("the models of " + folder);
  return all.empty() ? "the built-in model" : all;
}

// Prints the result as JSON for programs. An error is a result, too.
int put_verdict(const Result<config::Loaded>& loaded) {
  if (!loaded.ok()) {
    put_json({{"valid", false}, {"error", loaded.error().message()}});
    return 1;
  }
  json notes = json::array(), models = json::array();
  for (const config::Notice& notice : loaded->notices)
    notes.push_back({{"where", notice.where}, {"message", notice.message}});
  for (const config::Notice& note : path_notes(loaded->settings))
    notes.push_back({{"where", note.where}, {"message", note.message}});
  for (const config::ModelSettings& model : loaded->settings.models)
    models.push_back({{"name", model.name}, {"path", model.path}});
  return put_json({{"valid", true},
                   {"notes", std::move(notes)},
                   {"models", std::move(models)},
                   {"models_folder", loaded->settings.server.models_folder},
                   {"host", loaded->settings.server.host},
                   {"port", loaded->settings.server.port}})
             ? 0
             : 1;
}

}  // namespace

int run_check(const CheckOptions& options) {
  if (options.reference) return put(config::reference_yaml()) ? 0 : 1;
  const Result<config::Loaded> loaded = config::load({options.config, options.assignments});
  if (options.json) return put_verdict(loaded);
  if (!loaded.ok()) return fail(loaded.error());
  for (const config::Notice& notice : loaded->notices)
    put(cleaned_lines(notice.where + ": note: " + notice.message + "\n"));
  const config::Settings& settings = loaded->settings;
  if (!options.config.empty()) put_reload_notes(*loaded);
  const std::string summary =
      (options.config.empty() ? "the settings are valid: " : options.config + " is valid: ") +
      served_by(settings);
  for (const config::Notice& note : path_notes(settings))
    put(cleaned_lines("note: " + note.where + ": " + note.message + "\n"));
  put(cleaned_lines(summary) + " on " + cleaned_lines(settings.server.host) + ":" +
      std::to_string(settings.server.port) + "\n");
  return 0;
}

int run_bench(const BenchOptions& options) {
  std::error_code code;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", code);
  const std::filesystem::path folder = self.parent_path();
  constexpr std::string_view kPrefix = "bench-";
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && ::access(entry.path().c_str(), X_OK) == 0) {
      names.push_back(name.substr(kPrefix.size()));
    }
  }
  std::sort(names.begin(), names.end());
  if (options.name.empty()) {
    if (names.empty()) {
      return fail(
          Error(ErrorCode::kNotFound, "there are no bench-* programs in " + folder.string() +
                                          "; build them with: cmake --build --preset release"));
    }
    for (const std::string& name : names)
      put(name + "\n");
    return 0;
  }
  if (std::find(names.begin(), names.end(), options.name) == names.end()) {
    std::string known;
    for (const std::string& name : names)
      known += (known.empty() ? "" : ", ") + name;
    return fail(Error(ErrorCode::kNotFound,
                      "there is no benchmark '" + options.name + "' in " + folder.string() +
                          "; there are: " + (known.empty() ? "none" : known)));
  }
  const std::string program = (folder / (std::string(kPrefix) + options.name)).string();
  std::vector<std::string> words = {program};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> arguments;
  for (std::string& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  return fail(errno_error(ErrorCode::kInternal, "start " + program, errno));
}

}  // namespace bulkhead::cli
