#include "orchestrator/http/describe.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "config/base/utc_time.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

json channel_figures(const Worker& worker) {
  const ipc::ChannelStats channel = worker.channel_stats();
  const TokenTraffic traffic = worker.token_traffic();
  return {
      {"transport", worker.options().ipc.transport == config::Transport::kShm ? "shm" : "stdio"},
      {"records_sent", channel.records_sent},
      {"records_received", channel.records_received},
      {"bytes_sent", channel.bytes_sent},
      {"bytes_received", channel.bytes_received},
      {"tokens_received", traffic.tokens},
      {"tokens_per_record", traffic.tokens_per_record()},
      {"wakeups", traffic.wakeups},
      {"wakeups_per_token", traffic.wakeups_per_token()},
      {"doorbells_sent", channel.doorbells_sent},
      {"full_stalls", channel.full_stalls},
      {"depth_bytes", channel.depth_bytes},
      {"max_depth_bytes", channel.max_depth_bytes}};
}

// Returns the figure that the worker reported last; 0 before its first report.
double figure_of(const ipc::Stats& stats, std::string_view name) {
  const auto found = std::ranges::find(stats.counters, name, &ipc::Counter::name);
  return found == stats.counters.end() ? 0.0 : found->value;
}

// The type of cached keys and values is part of how the worker computes: ".../kv-q8_0".
json kv_type(const ipc::Ready& ready) {
  constexpr std::string_view kMark = "/kv-";
  const std::size_t at = ready.numerics_id.rfind(kMark);
  return at == std::string::npos ? json(nullptr)
                                 : json(ready.numerics_id.substr(at + kMark.size()));
}

// Describes the worker's figures of speculation; all are 0 until its engine has reported them.
json speculation_figures(const ipc::Stats& stats) {
  const auto figure = [&](std::string_view name) { return figure_of(stats, name); };
  return {{"drafted_tokens", figure("speculation_drafted_tokens_total")},
          {"accepted_tokens", figure("speculation_accepted_tokens_total")},
          {"steps", figure("speculation_steps_total")},
          {"gained_seconds", figure("speculation_gained_seconds")},
          {"draft_model",
           {{"drafted_tokens", figure("draft_model_drafted_tokens_total")},
            {"accepted_tokens", figure("draft_model_accepted_tokens_total")},
            {"seconds", figure("draft_model_seconds_total")}}}};
}

// Returns what the worker's engine reports of its prefix cache; all figures are 0 before its first report.
json prefix_cache_figures(const ipc::Stats& stats) {
  const auto figure = [&](std::string_view name) { return figure_of(stats, name); };
  return {{"hit_tokens", figure("prefix_cache_hit_tokens_total")},
          {"miss_tokens", figure("prefix_cache_miss_tokens_total")},
          {"hit_pages", figure("prefix_cache_hit_pages_total")},
          {"miss_pages", figure("prefix_cache_miss_pages_total")},
          {"pages", figure("prefix_cache_pages")},
          {"evictions", figure("prefix_cache_evictions_total")},
          {"hit_ratio", figure("prefix_cache_hit_ratio")}};
}

// Returns what the worker reports of its GPU layer, by part: "pool_hits" becomes gpu.memory_pool.hits. The worker
// chooses these names, so they are used as keys of JSON only.
json gpu_figures(const ipc::Stats& stats) {
  static constexpr std::array<std::pair<std::string_view, const char*>, 6> kParts = {{
      {"pool_", "memory_pool"},
      {"blit_", "blit_queue"},
      {"ring_", "command_buffer_ring"},
      {"gpu_", "device"},
      {"load_", "load"},
      {"kernel_", "kernels"},
  }};
  json out = json::object();
  for (const ipc::Counter& counter : stats.counters) {
    for (const auto& [prefix, part] : kParts) {
      if (counter.name.starts_with(prefix))
        out[part][counter.name.substr(prefix.size())] = counter.value;
    }
  }
  return out;
}

const char* to_string(ipc::VaultState state) {
  switch (state) {
    case ipc::VaultState::kOff:
      return "off";
    case ipc::VaultState::kKept:
      return "kept";
    case ipc::VaultState::kImported:
      return "imported";
    case ipc::VaultState::kWaiting:
      return "waiting";
  }
  return "unknown";
}

// Describes how a process got its memory, and how long that took.
json memory_figures(const ipc::VaultReport& report) {
  const auto milliseconds = [](std::uint64_t us) { return static_cast<double>(us) / 1000; };
  return {{"state", to_string(report.state)},
          {"reason", report.reason.empty() ? json(nullptr) : json(report.reason)},
          {"import_ms", milliseconds(report.import_microseconds)},
          {"check_ms", milliseconds(report.check_microseconds)},
          {"adopt_ms", milliseconds(report.adopt_microseconds)},
          {"pages_adopted", report.pages_adopted},
          {"pages_withheld", report.pages_withheld}};
}

// Describes the memory that outlives its process: that of the process that serves, and counts over all processes.
json vault_figures(const Worker& worker) {
  const Vault& vault = worker.vault();
  json out = memory_figures(worker.ready().vault);
  out["held"] = vault.held();
  out["imports_total"] = vault.imports();
  out["pages_adopted_total"] = vault.pages_adopted();
  out["drops_total"] = vault.drops();
  out["last_drop"] = vault.last_drop().empty() ? json(nullptr) : json(vault.last_drop());
  return out;
}

// Describes the recovery from the worker's last death: when each part ended and how long it took; null for parts that
// have not been reached.
json recovery_times(const Recovery& recovery) {
  if (!recovery.any()) return nullptr;
  const auto at_ns = [](const Recovery::Time& time) {
    return time.has_value() ? json(std::chrono::nanoseconds(time->time_since_epoch()).count())
                            : json(nullptr);
  };
  const auto between_ms = [](const Recovery::Time& from, const Recovery::Time& to) {
    if (!from.has_value() || !to.has_value()) return json(nullptr);
    return json(std::chrono::duration<double, std::milli>(*to - *from).count());
  };
  return {{"way", recovery.ready_at().has_value() ? json(to_string(recovery.way())) : nullptr},
          {"requests", recovery.carried()},
          {"exit_ms", between_ms(recovery.noticed_at(), recovery.ended_at())},
          {"gone_ms", between_ms(recovery.noticed_at(), recovery.gone_at())},
          {"spawn_ms", between_ms(recovery.ended_at(), recovery.greeted_at())},
          {"load_ms", between_ms(recovery.greeted_at(), recovery.ready_at())},
          {"replay_ms", between_ms(recovery.ready_at(), recovery.resumed_at())},
          {"noticed_at_ns", at_ns(recovery.noticed_at())},
          {"resumed_at_ns", at_ns(recovery.resumed_at())}};
}

// Describes the worker's part of the journal in memory. The journal on disk is the daemon's, and the same for all
// workers.
json journal_figures(const Worker& worker, const DiskJournal* disk) {
  json out = {{"entries", worker.outstanding()},
              {"bytes", worker.held_bytes},
              {"recovered_requests", worker.recovered_requests},
              {"disk", nullptr}};
  if (disk == nullptr) return out;
  const DiskJournal::Figures figures = disk->figures();
  out["disk"] = {{"written", !disk->failed()},
                 {"file_bytes", figures.file_bytes},
                 {"records", figures.records},
                 {"commits", figures.commits},
                 {"average_commit_ms", figures.average_commit_seconds() * 1000},
                 {"compactions", figures.compactions},
                 {"recovered_requests", figures.recovered_requests},
                 {"torn_bytes", figures.torn_bytes}};
  return out;
}

}  // namespace

json describe_worker(const Router& router, const Worker& worker, const DiskJournal* disk) {
  const ipc::Ready& ready = worker.ready();
  const ipc::Stats& stats = worker.stats();
  json optimizations = json::array();
  for (const ipc::Optimization& each : ready.optimizations) {
    optimizations.push_back(
        {{"name", each.name}, {"active", each.active}, {"reason", each.reason}});
  }
  json protections = json::array();
  for (const ipc::Protection& each : ready.protections)
    protections.push_back({{"name", each.name}, {"active", each.active}, {"detail", each.detail}});
  // The daemon made the group, so it does not ask the worker about it.
  const GroupReport group = worker.control_group();
  protections.push_back({{"name", "cgroup"}, {"active", group.active}, {"detail", group.detail}});
  json out = {
      {"name", worker.name()},
      {"model", router.models()[worker.options().model].id},
      {"pid", worker.pid() > 0 ? json(worker.pid()) : json(nullptr)},
      {"state", to_string(worker.state())},
      {"restarts", worker.restarts().total()},
      {"takeovers", worker.takeovers()},
      {"last_death", worker.last_death().empty() ? json(nullptr) : json(worker.last_death())},
      {"last_death_cause",
       worker.last_death().empty() ? json(nullptr) : json(to_string(worker.last_death_cause()))},
      {"device", ready.device},
      {"device_asked", worker.options().device},
      {"recovered_requests", worker.recovered_requests},
      {"last_recovery", recovery_times(worker.recovery)},
      {"vault", vault_figures(worker)},
      {"outstanding_requests", worker.outstanding()},
      {"architecture", ready.architecture},
      {"numerics_id", ready.numerics_id},
      {"context", ready.context_limit},
      {"vocabulary", ready.vocabulary_size},
      {"numerics", "exact"},  // with either setting: resumption is bit-exact
      {"kv_cache_tokens", ready.kv_cache_tokens},
      {"kv_type", kv_type(ready)},
      {"kv_bytes", figure_of(stats, "kv_bytes")},  // with states
      {"kv_bytes_per_token", figure_of(stats, "kv_bytes_per_token")},
      {"weight_bytes", ready.weight_bytes},
      {"load_ms", ready.load_milliseconds},
      {"chat_template", ready.has_chat_template ? json(ready.chat_template) : json(nullptr)},
      {"optimizations", std::move(optimizations)},
      {"protections", std::move(protections)},
      {"active_sequences", stats.active_sequences},
      {"waiting_sequences", stats.waiting_sequences},
      {"kv_pages_used", stats.kv_pages_used},
      {"kv_pages_total", stats.kv_pages_total},
      {"ipc", channel_figures(worker)},
      {"journal", journal_figures(worker, disk)},
      {"prefix_cache", prefix_cache_figures(stats)},
      {"speculation", speculation_figures(stats)},
      {"gpu", gpu_figures(stats)},
  };
  if (worker.state() == WorkerState::kLoading) {
    const ipc::Progress& progress = worker.progress();
    out["progress"] = {
        {"stage", progress.stage}, {"done", progress.done}, {"total", progress.total}};
  }
  return out;
}

json describe_spare(const Router& router, const Worker& worker, const Spare& spare) {
  const WorkerProcess* process = spare.process();
  const bool stands_by = process != nullptr && spare.state() == Spare::State::kStandby;
  json out = {
      {"name", spare.name()},
      {"standby_of", worker.name()},
      {"model", router.models()[worker.options().model].id},
      {"pid", process != nullptr && process->pid() > 0 ? json(process->pid()) : json(nullptr)},
      {"state", to_string(spare.state())},
      {"restarts", spare.restarts().total()},
      {"takeovers", 0},
      {"last_death", spare.last_death().empty() ? json(nullptr) : json(spare.last_death())},
      {"last_death_cause",
       spare.last_death().empty() ? json(nullptr) : json(to_string(spare.last_death_cause()))},
      {"device", stands_by ? process->ready().device : ""},
      {"recovered_requests", 0},
      {"outstanding_requests", 0},
  };
  if (stands_by) {
    out["load_ms"] = process->ready().load_milliseconds;
    out["vault"] = memory_figures(process->ready().vault);
  }
  if (process != nullptr && spare.state() == Spare::State::kLoading) {
    const ipc::Progress& progress = process->progress();
    out["progress"] = {
        {"stage", progress.stage}, {"done", progress.done}, {"total", progress.total}};
  }
  return out;
}

void describe_workers(const Router& router, const DiskJournal* disk,
                      const std::function<void(json)>& use) {
  for (const auto& worker : router.workers())
    use(describe_worker(router, *worker, disk));
  for (const auto& worker : router.workers()) {
    for (const auto& spare : worker->pool().spares()) {
      if (!spare->leaving()) use(describe_spare(router, *worker, *spare));
    }
  }
}

json describe_health(const Router& router) {
  const bool ready = router.ready() && !router.draining();
  json body = {{"status", ready ? "ok" : router.draining() ? "draining" : "loading"}};
  if (ready) return body;
  for (const ModelInfo& model : router.models()) {
    // A model that is loaded on demand does not count, as in ready().
    if (model.retired || model.on_demand || router.draining()) continue;
    std::string why = router.given_up(router.serving(model));
    if (!why.empty()) {
      body["status"] = "failed";
      body["reason"] = std::move(why);
    } else if (body["status"].get_ref<const std::string&>() != "failed" &&
               router.drained(router.serving(model))) {
      body["status"] = "drained";
      body["reason"] = fmt::format(
          "All workers of the model {} are drained; `bulkhead workers restart NAME` starts one "
          "again.",
          model.id);
    }
  }
  json workers = json::array();
  for (const auto& worker : router.workers()) {
    json entry = {{"name", worker->name()},
                  {"model", router.models()[worker->options().model].id},
                  {"state", to_string(worker->state())}};
    if (worker->state() == WorkerState::kLoading) {
      const ipc::Progress& progress = worker->progress();
      entry["stage"] = progress.stage;
      entry["done"] = progress.done;
      entry["total"] = progress.total;
    }
    if (!worker->last_death().empty()) entry["last_death"] = worker->last_death();
    workers.push_back(std::move(entry));
  }
  body["workers"] = std::move(workers);
  return body;
}

json describe_answer(const Router& router, const Answer& answer) {
  const Answer::Facts facts = answer.facts();
  const auto ms_since = [](Answer::Clock::time_point time, Answer::Clock::time_point began) {
    return std::chrono::duration<double, std::milli>(time - began).count();
  };
  std::string model(facts.model);
  std::set<std::string> workers;
  std::uint32_t tries = 0;
  for (const RequestId request : answer.unfinished()) {
    const auto place = router.place_of(request);
    if (!place) continue;
    model = router.models()[place->model].id;
    if (place->worker != nullptr) workers.insert(place->worker->name());
    tries = std::max(tries, place->resubmissions + 1);
  }
  const bool any_token = answer.first_token() != Answer::Clock::time_point{};
  return {{"id", answer.id()},
          {"endpoint", answer.endpoint()},
          {"model", model},
          {"key", answer.key_name().empty() ? json(nullptr) : json(answer.key_name())},
          {"state", workers.empty() ? "waiting"
                    : any_token     ? "answering"
                                    : "reading"},
          {"workers", workers},
          {"stream", facts.stream},
          {"choices", facts.choices},
          {"prompt_tokens", facts.usage.prompt_tokens},
          {"completion_tokens", facts.usage.completion_tokens},
          {"age_ms", ms_since(Answer::Clock::now(), answer.began())},
          {"first_token_ms",
           any_token ? json(ms_since(answer.first_token(), answer.began())) : json(nullptr)},
          {"tries", tries}};
}

json describe_crashes(const Router& router) {
  json list = json::array();
  for (const Crash& crash : router.crashes().all()) {
    list.push_back({{"time", utc_text(crash.time)},
                    {"worker", crash.worker},
                    {"model", crash.model},
                    {"pid", crash.pid},
                    {"cause", to_string(crash.cause)},
                    {"words", crash.words},
                    {"step", crash.step ? json(*crash.step) : json(nullptr)},
                    {"requests", crash.requests}});
  }
  return list;
}

json describe_model(const Router& router, const ModelInfo& model) {
  json out = {{"id", model.id},
              {"object", "model"},
              {"created", model.created},
              {"owned_by", "bulkhead"},
              {"aliases", model.settings.aliases},
              {"state", router.state_of(model)},
              {"memory_bytes", router.memory_of(model)}};
  if (const std::string why = router.given_up(model); !why.empty()) out["reason"] = why;
  if (const ipc::Ready* const known = model.known(); known != nullptr) {
    out["context"] = known->context_limit;
    out["architecture"] = known->architecture;
  }
  return out;
}

}  // namespace bulkhead::orchestrator
