// `bulkhead models`: shows what the daemon serves, and loads and unloads models.
#include <chrono>
#include <cstdio>
#include <thread>

#include <nlohmann/json.hpp>

#include "config/base/clean_text.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/table.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

std::string number_of(const json& object, const char* key, std::uint64_t unit) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number_unsigned()) return "-";
  const auto value = object[key].get<std::uint64_t>();
  return value == 0 ? "-" : std::to_string((value + unit - 1) / unit);
}

int list(HttpClient& client, bool as_json) {
  const Result<HttpResponse> response = client.get("/v1/models");
  if (!response.ok()) return fail(response.error());
  if (response->status != 200) return fail(api_error(*response));
  const json body = json::parse(response->body, nullptr, false);
  if (!body.is_object() || !body.contains("data") || !body["data"].is_array()) {
    return fail(
        Error(ErrorCode::kCorrupt, "the answer of " + client.url() + " is not a list of models"));
  }
  if (as_json) {
    put(response->body + (response->body.ends_with('\n') ? "" : "\n"));
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {
      {"MODEL", "STATE", "MIB", "CONTEXT", "ARCHITECTURE", "ALIASES"}};
  for (const json& model : body["data"]) {
    if (!model.is_object()) continue;
    rows.push_back({cell_of(model, "id"), cell_of(model, "state"),
                    number_of(model, "memory_bytes", 1U << 20), number_of(model, "context", 1),
                    cell_of(model, "architecture"), cell_of(model, "aliases")});
  }
  put(table(rows));
  return 0;
}

// Waits until the model has the state that the user asked for, or a state which shows that the
// model failed or that somebody else has asked for the opposite.
int wait_for(HttpClient& client, const std::string& id, bool loads, bool as_json) {
  for (;;) {
    const Result<HttpResponse> response = client.get("/v1/models/" + url_encoded(id));
    if (!response.ok()) return fail(response.error());
    if (response->status != 200) return fail(api_error(*response));
    const json model = json::parse(response->body, nullptr, false);
    const std::string state = cell_of(model, "state");
    if (state == (loads ? "loaded" : "unloaded")) {
      put(as_json ? model.dump() + "\n" : cell(id) + ": " + state + "\n");
      return 0;
    }
    if (!loads && (state == "loading" || state == "loaded" || state == "waiting")) {
      put(as_json ? model.dump() + "\n" : cell(id) + ": was loaded again by a request\n");
      return 0;
    }
    if (loads && (state == "unloaded" || state == "unloading")) {
      return fail(Error(ErrorCode::kUnavailable, "the model " + id + " was unloaded meanwhile"));
    }
    if (state == "drained") {
      return fail(Error(ErrorCode::kUnavailable,
                        "the workers of the model " + id +
                            " are drained; `bulkhead workers restart NAME` starts one again"));
    }
    if (state == "failed" || state == "-") {
      return fail(Error(ErrorCode::kUnavailable,
                        "the model " + id + " is " + state + ": " + cell_of(model, "reason")));
    }
    for (int i = 0; i < 10 && !interrupted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (interrupted) return 130;  // the daemon continues to load or unload it
  }
}

}  // namespace

int run_models(const ModelsOptions& options) {
  Result<HttpClient> client = make_client(options.connection);
  if (!client.ok()) return fail(client.error());
  if (options.action.empty() || options.action == "list") return list(*client, options.json);
  watch_interrupts();
  const Result<json> model =
      post_order(*client, "/v1/models/" + options.action, json{{"model", options.name}});
  if (!model.ok()) {  // the message may quote a name that has line ends
    return fail(Error(model.error().code(), cleaned(model.error().message())));
  }
  const bool named = model->contains("id") && (*model)["id"].is_string();
  const std::string id = named ? (*model)["id"].get<std::string>() : options.name;
  if (options.no_wait) {
    put(options.json ? model->dump() + "\n" : cell(id) + ": " + cell_of(*model, "state") + "\n");
    return 0;
  }
  return wait_for(*client, id, options.action == "load", options.json);
}

}  // namespace bulkhead::cli
