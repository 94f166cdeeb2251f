// `bulkhead requests` shows the requests that the daemon is answering; `bulkhead logs` shows what a
// worker wrote.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/cli/commands.hpp"
#include "tools/cli/table.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

constexpr useconds_t kLookEveryUs = 500'000, kLookForCtrlCEveryUs = 50'000;

// Returns whether nobody reads this program's output any more, as with `| head -1`. A write would fail, too, but the
// next line may come much later.
bool reader_has_left() {
  pollfd out{STDOUT_FILENO, 0, 0};
  return ::poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0;
}

std::string seconds_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return "-";
  char text[40];
  std::snprintf(text, sizeof text, "%.1f s", found->get<double>() / 1000);
  return text;
}

// Returns the answer's JSON, which must be a list or an object with the list `key`.
Result<json> list_of(HttpClient& client, const std::string& path, const char* key) {
  BULKHEAD_TRY(const HttpResponse response, client.get(path));
  if (response.status != 200) return api_error(response);
  json body = json::parse(response.body, nullptr, false);
  json list = key != nullptr && body.is_object() ? body.value(key, json()) : std::move(body);
  if (!list.is_array())
    return Error(ErrorCode::kCorrupt, "the answer of " + client.url() + path + " holds no list");
  return list;
}

}  // namespace

int run_requests(const RequestsOptions& options) {
  Result<HttpClient> client = make_client(options.connection);
  if (!client.ok()) return fail(client.error());
  const Result<json> list = list_of(*client, "/v1/requests", nullptr);
  if (!list.ok()) return fail(list.error());
  if (options.json) {
    put_json(*list);
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"ID", "STATE", "AGE", "PROMPT", "TOKENS",
                                                 "CHOICES", "TRIES", "MODEL", "WORKER",
                                                 "ENDPOINT"}};
  for (const json& each : *list) {
    if (!each.is_object()) continue;
    rows.push_back({cell_of(each, "id"), cell_of(each, "state"), seconds_of(each, "age_ms"),
                    cell_of(each, "prompt_tokens"), cell_of(each, "completion_tokens"),
                    cell_of(each, "choices"), cell_of(each, "tries"), cell_of(each, "model"),
                    cell_of(each, "workers"), cell_of(each, "endpoint")});
  }
  put(table(rows));
  return 0;
}

int run_logs(const LogsOptions& options) {
  Result<HttpClient> client = make_client(options.connection);
  if (!client.ok()) return fail(client.error());
  watch_interrupts();
  const std::string path = "/v1/workers/" + url_encoded(options.worker) + "/log";
  // The last line that was shown. A daemon that was started meanwhile counts its lines from 1 again, but its lines are
  // later ones.
  std::uint64_t last = 0;
  std::string last_time;
  for (bool first = true;; first = false) {
    const Result<json> list = list_of(*client, path, "lines");
    if (interrupted) return 0;
    if (!list.ok()) return fail(list.error());
    std::string text;
    std::size_t at = 0;
    for (const json& line : *list) {
      ++at;
      if (!line.is_object()) continue;
      const json number = line.value("number", json());
      const std::string time = cell_of(line, "time");
      if (!number.is_number_unsigned()) continue;
      if (number.get<std::uint64_t>() <= last && time <= last_time) continue;
      last = number.get<std::uint64_t>();
      last_time = std::max(last_time, time);
      if (first && list->size() - at >= options.lines) continue;
      text += options.json ? json_text(line) + "\n" : time + " " + cell_of(line, "text") + "\n";
    }
    if (!put(text) || !options.follow) return 0;
    for (useconds_t waited = 0; waited < kLookEveryUs && !interrupted;
         waited += kLookForCtrlCEveryUs)
      ::usleep(kLookForCtrlCEveryUs);
    if (interrupted || reader_has_left()) return 0;
  }
}

}  // namespace bulkhead::cli
