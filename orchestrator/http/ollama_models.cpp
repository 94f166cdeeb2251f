// Models as Ollama's clients list them.
#include <algorithm>
#include <ctime>

#include <spdlog/fmt/fmt.h>

#include "config/base/fnv1a.hpp"
#include "orchestrator/http/ollama.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

std::string time_as_text(std::int64_t since_1970) {
  const auto seconds = static_cast<std::time_t>(since_1970);
  std::tm utc = {};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// Says whether the model has a process that serves it, even one that is about to end.
bool is_running(const ModelInfo& model) {
  return std::ranges::any_of(model.workers,
                             [](const Worker* worker) { return serves(worker->state()); });
}

json details_of(const ipc::Ready* ready) {
  const std::string family = ready != nullptr ? ready->architecture : "";
  const ipc::FileFacts facts = ready != nullptr ? ready->facts : ipc::FileFacts();
  return {{"parent_model", ""},
          {"format", "gguf"},
          {"family", family},
          {"families", family.empty() ? json() : json{family}},
          {"parameter_size", facts.size},
          {"quantization_level", facts.quantization}};
}

// Ollama's own client shows the first digits of a hash of 64 digits, and fails if they are missing. This hash changes
// with the model's name and its file, and is no hash of the file's contents.
std::string digest_of(const ModelInfo& model) {
  std::string digits;
  for (const char part : {'1', '2', '3', '4'})
    digits += fmt::format("{:016x}", fnv1a(part + model.id + '\n' + model.file_mark));
  return digits;
}

json entry_of(const ModelInfo& model) {
  const ipc::Ready* ready = model.known();
  return {{"name", model.id},
          {"model", model.id},
          {"size", ready != nullptr ? ready->weight_bytes : model.file_bytes},
          {"digest", digest_of(model)},
          {"details", details_of(ready)}};
}

}  // namespace

json ollama_tags(const Router& router) {
  json models = json::array();
  for (const ModelInfo& model : router.models()) {
    if (model.retired) continue;
    json entry = entry_of(model);
    entry["modified_at"] = time_as_text(model.created);
    models.push_back(std::move(entry));
  }
  return {{"models", std::move(models)}};
}

json ollama_ps(const Router& router) {
  constexpr std::int64_t kYear = 365 * 24 * 3600;
  json models = json::array();
  for (const ModelInfo& model : router.models()) {
    const ipc::Ready* ready = router.serving(model).reported();
    if (model.retired || ready == nullptr || !is_running(router.serving(model))) continue;
    json entry = entry_of(model);
    entry["size_vram"] = ready->weight_bytes;
    entry["context_length"] = ready->context_limit;
    entry["expires_at"] = time_as_text(std::time(nullptr) + kYear);  // no time is set
    models.push_back(std::move(entry));
  }
  return {{"models", std::move(models)}};
}

json ollama_show(const ModelInfo& model) {
  const ipc::Ready* ready = model.known();
  json info = {{"general.architecture", ""}};  // Ollama's own client fails without this one
  json capabilities = {"completion"};  // the default while nothing is known of the model's file
  if (ready != nullptr) {
    info["general.architecture"] = ready->architecture;
    if (!ready->model_name.empty()) info["general.basename"] = ready->model_name;
    if (ready->facts.parameters != 0) info["general.parameter_count"] = ready->facts.parameters;
    info[ready->architecture + ".context_length"] = ready->context_limit;
    info[ready->architecture + ".vocab_size"] = ready->vocabulary_size;
    capabilities = ready->capabilities;
  }
  std::string parameters;  // in the form of a Modelfile's
  for (const ipc::SamplingAdvice& each : advice_of(model)) {
    parameters +=
        fmt::format("{}{} {:g}", parameters.empty() ? "" : "\n",
                    each.name == "repetition_penalty" ? "repeat_penalty" : each.name, each.value);
  }
  return {{"modelfile", "# The daemon's configuration says how this model is served.\n"},
          {"parameters", parameters},
          {"template", ""},
          {"license", ""},
          {"details", details_of(ready)},
          {"model_info", std::move(info)},
          {"capabilities", std::move(capabilities)},
          {"modified_at", time_as_text(model.created)}};
}

}  // namespace bulkhead::orchestrator
