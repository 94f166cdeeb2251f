// Checks of the rules between settings, and notices about settings that are allowed but surprising.
#include <algorithm>
#include <set>

#include "config/access_key.hpp"
#include "config/base/loopback.hpp"
#include "config/http_address.hpp"
#include "config/loader.hpp"
#include "config/model_name.hpp"

namespace bulkhead::config {

Status Loader::check(bool key_given) {
  BULKHEAD_RETURN_IF_ERROR(check_server());
  BULKHEAD_RETURN_IF_ERROR(check_gpu());
  BULKHEAD_RETURN_IF_ERROR(check_isolation());
  BULKHEAD_RETURN_IF_ERROR(check_models());
  add_notices(key_given);
  return {};
}

Status Loader::check_host() const {
  const std::string& host = loaded_.settings.server.host;
  const auto refuse = [&](const std::string& why) {
    return wrong(origin("server.host"), "server.host", why);
  };
  if (host.empty()) return refuse("is empty; 127.0.0.1 serves this machine only");
  if (host == "*")
    return refuse("takes no *; write 0.0.0.0 for every IPv4 address of this machine");
  const bool has_port =
      host.front() == '[' ? host.back() != ']' : std::ranges::count(host, ':') == 1;
  if (has_port || host.find_first_of("/ ") != std::string::npos) {
    return refuse("'" + host +
                  "' is no address alone; write it without http:// and without the port, which is "
                  "server.port");
  }
  return {};
}

Status Loader::check_path(const std::string& path, const std::string& key) const {
  if (!path.starts_with("~/")) return {};
  return wrong(origin(key), key,
               "'" + path +
                   "' begins with ~, which only a shell replaces by a home folder; write the whole "
                   "path");
}

Status Loader::check_server() const {
  const ServerSettings& server = loaded_.settings.server;
  BULKHEAD_RETURN_IF_ERROR(check_host());
  BULKHEAD_RETURN_IF_ERROR(check_path(server.models_folder, "server.models_folder"));

  if (server.max_memory_mb < 2 * server.max_body_mb) {
    return wrong(origin_of({"server.max_memory_mb", "server.max_body_mb"}), "server.max_memory_mb",
                 "must be at least twice server.max_body_mb, which is " +
                     std::to_string(server.max_body_mb));
  }

  if (const std::string why = why_never_sent(server.api_key); !why.empty())
    return wrong(origin("server.api_key"), "server.api_key", why);
  std::set<std::string> names, keys = {server.api_key};
  for (const std::string& text : server.keys) {
    const Result<AccessKey> key = parse_access_key(text);
    if (!key.ok()) return wrong(origin("server.keys"), "server.keys", key.error().message());
    if (!names.insert(key->name).second)
      return wrong(origin("server.keys"), "server.keys", "has the name " + key->name + " twice");
    if (!keys.insert(key->key).second) {
      return wrong(origin("server.keys"), "server.keys",
                   "gives " + key->name + " a key that another entry or server.api_key has, too");
    }
  }

  for (const std::string& host : server.allowed_hosts) {
    if (host.find_first_of("/ ") == std::string::npos) continue;
    return wrong(origin("server.allowed_hosts"), "server.allowed_hosts",
                 "'" + host + "' is no host name; write it as chat.example.org, without http://");
  }
  if (!server.otlp_endpoint.empty()) {
    const Result<HttpAddress> collector = parse_http_address(server.otlp_endpoint);
    if (!collector.ok())
      return wrong(origin("server.otlp_endpoint"), "server.otlp_endpoint",
                   collector.error().message());
  }
  for (const std::string& page : server.allowed_origins) {
    const std::size_t scheme = page.find("://");
    const bool whole = scheme != std::string::npos && scheme + 3 < page.size() &&
                       page.find_first_of("/ ", scheme + 3) == std::string::npos;
    if (page == "*" || whole) continue;
    return wrong(origin("server.allowed_origins"), "server.allowed_origins",
                 "'" + page + "' is no origin; write it as https://chat.example.org, with no path");
  }
  return {};
}

Status Loader::check_gpu() const {
  const Settings& settings = loaded_.settings;
  const MemoryPoolSettings& pool = settings.gpu_optimizations.memory_pool;
  const char* const kWarmup = "gpu_optimizations.memory_pool.warmup_sizes";
  const char* const kHeap = "gpu_optimizations.memory_pool.heap_size_mb";
  for (const std::uint32_t size : pool.warmup_sizes) {
    if (size <= pool.heap_size_mb) continue;
    return wrong(origin_of({kWarmup, kHeap}), kWarmup,
                 std::to_string(size) + " MiB does not fit a heap of heap_size_mb: " +
                     std::to_string(pool.heap_size_mb) + "; lower the one or raise the other");
  }

  const std::string& trace = settings.gpu_optimizations.trace_file;
  if (trace.find('/') != std::string::npos || trace.starts_with('.')) {
    const char* const kTrace = "gpu_optimizations.trace_file";
    return wrong(
        origin(kTrace), kTrace,
        "'" + trace + "' is no plain file name; the file lies in the worker's cache folder");
  }

  return {};
}

Status Loader::check_isolation() const {
  BULKHEAD_RETURN_IF_ERROR(
      check_path(loaded_.settings.isolation.journal_path, "isolation.journal_path"));
  const char* const kPaths = "isolation.sandbox_paths";
  std::string_view rest = loaded_.settings.isolation.sandbox_paths;
  while (!rest.empty()) {
    const std::string_view path = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(path.size() + 1, rest.size()));
    if (path.empty() || path.starts_with('/')) continue;
    return wrong(origin(kPaths), kPaths, "'" + std::string(path) + "' does not begin with /");
  }
  return {};
}

Status Loader::check_split(const ModelSettings& model, const std::string& prefix) const {
  if (model.split == Split::kNo) return {};
  const std::string key = prefix + ".split";
  const auto refuse = [&](const std::string& why) { return wrong(origin(key), key, why); };
  const bool all = model.devices == std::vector<std::string>{"all"};
  if (model.devices.size() < 2 && !all)
    return refuse("shares a model's layers out to devices; name at least two in `devices`");
  if (model.devices.size() > kMostStages)
    return refuse("shares layers out to " + std::to_string(kMostStages) + " devices at most");
  for (const std::string& device : model.devices) {
    if (device.find(',') != device.npos)
      return refuse("takes no device name with a comma: '" + device +
                    "'; use its number (`bulkhead doctor`)");
  }
  return {};
}

Status Loader::check_devices(const ModelSettings& model, const std::string& prefix) const {
  const std::string key = prefix + ".devices";
  BULKHEAD_RETURN_IF_ERROR(check_split(model, prefix));
  if (model.devices.empty()) return {};
  const auto refuse = [&](const std::string& why) { return wrong(origin(key), key, why); };
  if (model.device != ModelSettings().device)
    return refuse("is set beside `device`; name all devices in `devices`");
  for (const std::string& device : model.devices) {
    if (device == "auto")
      return refuse("takes no auto, which is one device; name numbers (`bulkhead doctor`), or all");
    if (device == "all" && model.devices.size() > 1)
      return refuse("has all beside other devices; write only all, or name the devices");
  }
  if (model.split == Split::kNo && model.devices.size() * model.workers > kMostWorkersOfModel) {
    return refuse("gives the model " + std::to_string(model.devices.size() * model.workers) +
                  " workers, and it may have " + std::to_string(kMostWorkersOfModel));
  }
  return {};
}

Status Loader::check_models() const {
  const Settings& settings = loaded_.settings;
  std::map<std::string, std::size_t> names;
  for (std::size_t i = 0; i < settings.models.size(); ++i) {
    const std::string prefix = "models." + std::to_string(i);
    const ModelSettings& model = settings.models[i];
    if (model.path.empty()) {
      return wrong(origin(prefix + ".path"), prefix + ".path",
                   "is empty: name a GGUF file, or builtin");
    }
    BULKHEAD_RETURN_IF_ERROR(check_path(model.path, prefix + ".path"));
    BULKHEAD_RETURN_IF_ERROR(check_path(model.draft, prefix + ".draft"));
    BULKHEAD_RETURN_IF_ERROR(check_path(model.chat_template, prefix + ".chat_template"));
    if (model.device.empty()) {
      return wrong(origin(prefix + ".device"), prefix + ".device",
                   "is empty; auto picks the best one");
    }
    BULKHEAD_RETURN_IF_ERROR(check_devices(model, prefix));
    const auto [first, is_new] = names.emplace(name_of(model), i);
    if (is_new) continue;
    const std::string other = "models." + std::to_string(first->second);
    const std::string advice = "; for more processes of one model use its `workers`";
    if (!model.name.empty()) {
      return wrong(origin(prefix + ".name"), prefix + ".name",
                   "'" + model.name + "' is the name of " + other + " already" + advice);
    }
    return wrong(origin(prefix + ".path"), prefix + ".path",
                 "the model would be called '" + name_of(model) + "' like " + other +
                     "; give one of them a `name`" + advice);
  }
  for (std::size_t i = 0; i < settings.models.size(); ++i) {
    const std::string key = "models." + std::to_string(i) + ".aliases";
    for (const std::string& alias : settings.models[i].aliases) {
      const auto [first, is_new] = names.emplace(alias, i);
      const bool own_file = first->second == i && settings.models[i].name.empty();
      if (is_new || own_file) continue;
      return wrong(origin(key), key,
                   "'" + alias + "' is a name of models." + std::to_string(first->second) +
                       " already; a request could not say which it means");
    }
  }

  return {};
}

void Loader::add_notices(bool key_given) {
  const Settings& settings = loaded_.settings;
  const bool has_key = key_given || !settings.server.api_key.empty();
  const Settings defaults;
  for (const Setting& setting : settings_table()) {
    if (setting.later && text_of(setting, settings) != text_of(setting, defaults)) {
      notice(setting.key, "this version does not have it yet; the setting has no effect");
    }
  }
  if (settings.engine.numerics == Numerics::kFast) {
    notice("engine.numerics",
           "no kernel that depends on the batch is faster than those that don't: fast computes as "
           "exact does");
  }
  if (!is_loopback(settings.server.host) && !has_key) {
    notice("server.host",
           settings.server.host +
               " can be reached from other machines, so the daemon will not start without "
               "server.api_key (or BULKHEAD_API_KEY)");
  }
  if (!settings.server.keys.empty() && !has_key) {
    notice("server.keys",
           "are clients' keys; the daemon will not start without the operators' key, "
           "server.api_key (or BULKHEAD_API_KEY)");
  }
  if (std::ranges::find(settings.server.allowed_origins, "*") !=
          settings.server.allowed_origins.end() &&
      !has_key) {
    notice(
        "server.allowed_origins",
        "\"*\" counts only with server.api_key (or BULKHEAD_API_KEY): without one every web page "
        "could use this server");
  }
  if (settings.server.device_memory_mb != 0 && settings.engine.kv_cache_mb == 0) {
    notice(
        "server.device_memory_mb",
        "is best set with engine.kv_cache_mb: without it each model's KV cache may take what the "
        "device has free");
  }
  for (std::size_t i = 0; i < settings.models.size(); ++i) {
    if (settings.models[i].draft.empty() || settings.engine.speculation != Speculation::kOff)
      continue;
    notice("models." + std::to_string(i) + ".draft",
           "has no effect while engine.speculation is off, which lets nothing be guessed");
  }
  if (settings.ipc.flush_tokens > 1 && settings.ipc.flush_interval_us == 0) {
    notice("ipc.flush_tokens",
           "has no effect while ipc.flush_interval_us is 0, which lets no token wait");
  }
  const std::uint32_t wait_ms = settings.gpu_optimizations.command_buffer_ring.timeout_ms;
  if (wait_ms > settings.isolation.heartbeat_timeout_ms) {
    notice("gpu_optimizations.command_buffer_ring.timeout_ms",
           "is longer than isolation.heartbeat_timeout_ms, so a hung device ends by that one");
  }
}

}  // namespace bulkhead::config
