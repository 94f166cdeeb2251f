// `bulkhead workers`: shows what the daemon's workers are doing, and drains and restarts them.
#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "config/base/percent.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/table.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

std::string text_of(const json& worker, const char* key) {
  std::string text = cell_of(worker, key);
  const json value = worker.value(key, json());
  if (!value.is_object()) return text;
  // last_death may be an object that has the text as a member
  for (const char* inner : {"cause", "reason", "message", "name"}) {
    if (value.contains(inner) && value[inner].is_string()) text = cell(value[inner]);
  }
  return text;
}

// Renders the share of the KV cache's pages in use, such as "37 %".
json kv_cache_of(const json& worker) {
  const json used = worker.value("kv_pages_used", json()),
             total = worker.value("kv_pages_total", json());
  if (!used.is_number_unsigned() || !total.is_number_unsigned() || total == 0) return nullptr;
  return std::to_string(percent_of(used.get<std::uint64_t>(), total.get<std::uint64_t>())) + " %";
}

}  // namespace

int run_workers(const WorkersOptions& options) {
  Result<HttpClient> client = make_client(options.connection);
  if (!client.ok()) return fail(client.error());

  if (!options.action.empty()) {
    const Result<json> worker =
        post_order(*client, "/v1/workers/" + url_encoded(options.name) + "/" + options.action,
                   options.cold ? json{{"cold", true}} : json::object());
    if (!worker.ok()) return fail(worker.error());
    if (options.json) {
      put_json(*worker);
      return 0;
    }
    put(options.name +
        (options.action == "drain" ? ": draining; it takes no new requests\n" : ": restarting\n"));
    return 0;
  }

  const Result<HttpResponse> response = client->get("/v1/workers");
  if (!response.ok()) return fail(response.error());
  if (response->status != 200) return fail(api_error(*response));
  json workers = json::parse(response->body, nullptr, false);
  if (workers.is_object() && workers.contains("data")) workers = json(workers["data"]);
  if (!workers.is_array()) {
    return fail(
        Error(ErrorCode::kCorrupt, "the answer of " + client->url() + " is not a list of workers"));
  }
  if (options.json) {
    put(response->body + (response->body.ends_with('\n') ? "" : "\n"));
    return 0;
  }
  struct Column {
    const char* title;
    const char* key;
  };
  constexpr Column kColumns[] = {{"NAME", "name"},
                                 {"MODEL", "model"},
                                 {"PID", "pid"},
                                 {"STATE", "state"},
                                 {"REQUESTS", "outstanding_requests"},
                                 {"RUNNING", "active_sequences"},
                                 {"WAITING", "waiting_sequences"},
                                 {"KV CACHE", "kv_cache"},
                                 {"RESTARTS", "restarts"},
                                 {"RECOVERED", "recovered_requests"},
                                 {"DEVICE", "device"},
                                 {"LAST DEATH", "last_death"}};
  std::vector<std::vector<std::string>> rows(1);
  for (const Column& column : kColumns)
    rows[0].emplace_back(column.title);
  for (json& worker : workers) {
    if (!worker.is_object()) continue;
    worker["kv_cache"] = kv_cache_of(worker);
    worker["device"] = device_cell(worker);
    std::vector<std::string>& row = rows.emplace_back();
    for (const Column& column : kColumns)
      row.push_back(text_of(worker, column.key));
  }
  put(table(rows));
  return 0;
}

}  // namespace bulkhead::cli
