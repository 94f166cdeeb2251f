#include "config/config.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "config/loader.hpp"

namespace bulkhead::config {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;  // a larger file is not a settings file
constexpr std::size_t kMaxModels = 256;

// Returns the first line, counted from 1, whose indentation contains a tab, because the YAML library's message does
// not say that; 0: there is none.
std::size_t tab_indented_line(std::string_view text) {
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t indentation = std::min(text.find_first_not_of(" \t"), text.size());
    if (text.substr(0, indentation).find('\t') != std::string_view::npos) return line;
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  }
  return 0;
}

Error unknown(const std::string& where, const std::string& key,
              const std::string& model_prefix = "models.0.") {
  if (key == "<<" || key.ends_with(".<<"))
    return wrong(where, key, "merges are not read; write the settings themselves");
  return wrong(where, key,
               "unknown setting; did you mean " + nearest_name(key, model_prefix) + "?");
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// Returns a list's item without the quotes around it, which YAML would not take for a part of it either.
std::string_view unquoted(std::string_view item) {
  const bool quoted = item.size() >= 2 && item.front() == item.back() &&
                      (item.front() == '"' || item.front() == '\'');
  return quoted ? item.substr(1, item.size() - 2) : item;
}

// Reads "[32, 128]", "32,128", "[]" and plain text. A text field takes the text as it is, including brackets and
// commas.
Written written_text(std::string_view text, bool list_wanted) {
  if (!list_wanted) return {{std::string(text)}, false};
  text = trimmed(text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']')
    text = trimmed(text.substr(1, text.size() - 2));
  Written written{{}, true};
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    written.items.emplace_back(unquoted(trimmed(text.substr(0, comma))));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty())
      written.items.emplace_back();  // "32," has an empty entry, which is refused because it is no number
  }
  return written;
}

bool wants_text(const Setting& setting) {
  return std::holds_alternative<Reach<Settings, std::string>>(setting.reach);
}

std::string at(const std::string& path, const YAML::Mark& mark) {
  return mark.line < 0 ? path : path + ":" + std::to_string(mark.line + 1);
}

// Finds where the documents of a text begin, at most two of them. YAML::LoadAll() can't be used: for a text such as
// "," yaml-cpp makes empty documents without end, all at one place.
class DocumentStarts final : public YAML::EventHandler {
 public:
  explicit DocumentStarts(const std::string& text) {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (marks_.size() < 2 && parser.HandleNextDocument(*this)) {
    }
  }
  const std::vector<YAML::Mark>& marks() const { return marks_; }

  void OnDocumentStart(const YAML::Mark& mark) override { marks_.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  std::vector<YAML::Mark> marks_;
};

}  // namespace

Error wrong(const std::string& where, const std::string& key, const std::string& message) {
  std::string text;
  if (!where.empty()) text += where + ": ";
  if (!key.empty()) text += key + ": ";
  return Error(ErrorCode::kInvalidArgument, text + message);
}

Status Loader::read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return errno_error(ErrorCode::kNotFound, "open settings file " + path, errno);
  std::string text;
  char chunk[16384];
  while (stream.read(chunk, sizeof chunk), stream.gcount() > 0) {
    text.append(chunk, static_cast<std::size_t>(stream.gcount()));
    if (text.size() > kMaxFileBytes) {
      return wrong(
          path, "",
          "is larger than 1 MiB, so it is hardly a settings file; see config/runtime.yaml for one");
    }
  }
  if (stream.bad() || (text.empty() && stream.fail() && !stream.eof())) {
    return errno_error(ErrorCode::kNotFound, "read settings file " + path, errno);
  }
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    return wrong(path, "", "is UTF-16; save it as UTF-8");
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    loaded_.unfit_for_reload.push_back({path, "the file is empty"});
  } else if (text.back() != '\n') {
    loaded_.unfit_for_reload.push_back(
        {path, "the file's last line has no end, as if the file were cut off; end it"});
  }
  try {
    const DocumentStarts starts(text);
    if (starts.marks().size() > 1) {
      const YAML::Mark& first = starts.marks()[0];
      const YAML::Mark& second = starts.marks()[1];
      if (first.pos == second.pos) {
        return wrong(at(path, second), "", "is not valid YAML: nothing can begin like this");
      }
      return wrong(path, "", "holds more than one YAML document; keep one");
    }
    const YAML::Node document = YAML::Load(text);
    if (!document.IsDefined() || document.IsNull()) return {};
    if (!document.IsMap()) {
      return wrong(at(path, document.Mark()), "",
                   "is not a settings file: its top level must be `section:` lines as in "
                   "config/runtime.yaml");
    }
    return read_section(path, "", document);
  } catch (const YAML::Exception& failure) {
    if (const std::size_t line = tab_indented_line(text); line != 0) {
      return wrong(path + ":" + std::to_string(line), "",
                   "is not valid YAML: the line is indented with a tab; use spaces");
    }
    return wrong(at(path, failure.mark), "", "is not valid YAML: " + failure.msg);
  } catch (const std::exception& failure) {
    return wrong(path, "", std::string("can't be read as YAML: ") + failure.what());
  }
}

Result<Written> Loader::read_value(const std::string& where, const std::string& key,
                                   const YAML::Node& node) {
  Written written;
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      written.items.push_back(node.Scalar());
      return written;
    case YAML::NodeType::Null:
    case YAML::NodeType::Undefined:
      return wrong(
          where, key,
          "has no value; leave the line out for the default, or write \"\" for an empty text");
    case YAML::NodeType::Map:
      return wrong(where, key, "takes a value, not a section");
    case YAML::NodeType::Sequence:
      break;
  }
  written.is_list = true;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) return wrong(where, key, "takes a list of plain values, not of sections");
    written.items.push_back(item.Scalar());
  }
  return written;
}

Status Loader::read_section(const std::string& path, const std::string& prefix,
                            const YAML::Node& node) {
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string where = at(path, entry.first.Mark());
    if (!entry.first.IsScalar()) return wrong(where, "", "a setting's name must be plain text");
    const std::string key = prefix + entry.first.Scalar();
    if (!seen.insert(key).second) return wrong(where, key, "is given twice; keep one");
    if (key == "models") {
      BULKHEAD_RETURN_IF_ERROR(read_models(path, entry.second));
    } else if (const Setting* setting = find_setting(key)) {
      BULKHEAD_TRY(Written written, read_value(where, key, entry.second));
      // A single value counts as a list with one entry.
      if (wants_list(*setting) && !written.is_list) written = written_text(written.items[0], true);
      if (Status stored = store(*setting, loaded_.settings, written); !stored.ok()) {
        return wrong(where, key, stored.error().message());
      }
      origins_[key] = where;
    } else if (is_section(key)) {
      if (entry.second.IsNull()) continue;  // a section in which all keys are commented out
      if (!entry.second.IsMap())
        return wrong(where, key, "is a section: its settings go below it, indented");
      BULKHEAD_RETURN_IF_ERROR(read_section(path, key + ".", entry.second));
    } else if (const RetiredSetting* retired = find_retired_setting(key)) {
      tell_retired(where, *retired);
    } else {
      return unknown(where, key);
    }
  }
  return {};
}

Status Loader::read_models(const std::string& path, const YAML::Node& node) {
  if (node.IsNull()) return {};
  if (!node.IsSequence()) {
    return wrong(at(path, node.Mark()), "models",
                 "takes a list: one `- path: FILE` entry for each model");
  }
  loaded_.settings.models.clear();
  for (const YAML::Node& entry : node) {
    const std::string prefix = "models." + std::to_string(loaded_.settings.models.size());
    const std::string entry_where = at(path, entry.Mark());
    if (!entry.IsMap())
      return wrong(entry_where, prefix, "takes `path: FILE` and the like, not a bare value");
    if (loaded_.settings.models.size() == kMaxModels) {
      return wrong(entry_where, "models",
                   "has more than " + std::to_string(kMaxModels) + " entries");
    }
    ModelSettings& model = loaded_.settings.models.emplace_back();
    origins_[prefix] = entry_where;
    std::set<std::string> seen;
    for (const auto& item : entry) {
      const std::string where = at(path, item.first.Mark());
      if (!item.first.IsScalar())
        return wrong(where, prefix, "a setting's name must be plain text");
      const std::string key = prefix + "." + item.first.Scalar();
      const ModelSetting* setting = find_model_setting(item.first.Scalar());
      if (setting == nullptr) return unknown(where, key, prefix + ".");
      if (!seen.insert(key).second) return wrong(where, key, "is given twice; keep one");
      BULKHEAD_TRY(Written written, read_value(where, key, item.second));
      if (wants_list(*setting) && !written.is_list) written = written_text(written.items[0], true);
      if (Status stored = store(*setting, model, written); !stored.ok()) {
        return wrong(where, key, stored.error().message());
      }
      origins_[key] = where;
    }
  }
  return {};
}

Status Loader::assign(std::string_view assignment) {
  const std::string where = "--set";
  const std::size_t equals = assignment.find('=');
  const std::string key(trimmed(assignment.substr(0, equals)));
  if (equals == std::string_view::npos || key.empty()) {
    return wrong(
        where, "",
        "'" + std::string(assignment) + "' is not KEY=VALUE, for example server.port=8080");
  }
  const std::string_view value = assignment.substr(equals + 1);

  if (key == "models" || key.starts_with("models.")) {
    const std::string usage =
        "write models.0.path=FILE, models.0.name=NAME and so on, models.1 for a second model";
    const std::size_t dot = key.find('.', 7);
    std::size_t index = 0;
    if (key == "models" || dot == std::string::npos) return wrong(where, key, usage);
    const auto [end, failure] = std::from_chars(key.data() + 7, key.data() + dot, index);
    if (failure != std::errc{} || end != key.data() + dot) return wrong(where, key, usage);
    std::vector<ModelSettings>& models = loaded_.settings.models;
    if (index > models.size()) {
      return wrong(
          where, key,
          "there is no models." + std::to_string(index - 1) + " yet; entries are numbered from 0");
    }
    if (index >= kMaxModels)
      return wrong(where, "models", "has more than " + std::to_string(kMaxModels) + " entries");
    const std::string prefix = key.substr(0, dot);
    const ModelSetting* setting = find_model_setting(key.substr(dot + 1));
    if (setting == nullptr) return unknown(where, key, prefix + ".");
    if (index == models.size()) {
      models.emplace_back();
      origins_[prefix] = where;
    }
    if (Status stored = store(*setting, models[index], written_text(value, wants_list(*setting)));
        !stored.ok()) {
      return wrong(where, key, stored.error().message());
    }
    origins_[key] = where;
    return {};
  }

  const Setting* setting = find_setting(key);
  if (setting == nullptr) {
    if (is_section(key))
      return wrong(where, key, "is a section; name one of its settings, as in config/runtime.yaml");
    if (const RetiredSetting* retired = find_retired_setting(key)) {
      tell_retired(where, *retired);
      return {};
    }
    return unknown(where, key);
  }
  const std::string_view bare = wants_text(*setting) ? value : trimmed(value);
  if (Status stored = store(*setting, loaded_.settings, written_text(bare, wants_list(*setting)));
      !stored.ok()) {
    return wrong(where, key, stored.error().message());
  }
  origins_[key] = where;
  return {};
}

Result<Loaded> load(const Sources& sources) {
  Loader loader;
  if (!sources.file.empty()) BULKHEAD_RETURN_IF_ERROR(loader.read_file(sources.file));
  for (const std::string& assignment : sources.assignments)
    BULKHEAD_RETURN_IF_ERROR(loader.assign(assignment));
  BULKHEAD_RETURN_IF_ERROR(loader.check(sources.key_given));
  return std::move(loader).take();
}

Status assign(Settings& settings, std::string_view assignment) {
  Loader loader;
  loader.settings() = settings;
  BULKHEAD_RETURN_IF_ERROR(loader.assign(assignment));
  settings = std::move(loader).take().settings;
  return {};
}

std::vector<std::string> worker_assignments(const Settings& settings) {
  const Settings defaults;
  std::vector<std::string> assignments;
  for (const Setting& setting : settings_table()) {
    if (setting.worker == Worker::kNo) continue;
    const std::string value = text_of(setting, settings);
    if (value != text_of(setting, defaults))
      assignments.push_back(std::string(setting.key) + "=" + value);
  }
  return assignments;
}

}  // namespace bulkhead::config
