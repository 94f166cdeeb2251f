#include "orchestrator/metrics/metrics.hpp"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "config/base/worker_figures.hpp"
#include "orchestrator/metrics/metric_name.hpp"

namespace bulkhead::orchestrator {

namespace {

using prometheus::ClientMetric;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

// The metrics that are made when they are scraped, from figures that live elsewhere: first the daemon's own, then
// what workers report.
class Snapshot {
 public:
  using Labels = std::vector<ClientMetric::Label>;

  void add(MetricType type, const std::string& name, const std::string& help, double value,
           Labels labels = {}) {
    reserve(name);
    put(type, name, help, value, std::move(labels));
  }
  void gauge(const char* name, const char* help, double value) {
    add(MetricType::Gauge, name, help, value);
  }
  void counter(const char* name, const char* help, double value) {
    add(MetricType::Counter, name, help, value);
  }
  // Makes sure that no worker can report a figure of this name.
  void reserve(const std::string& name) { taken_.insert(name); }
  // Adds a figure whose name a worker chose. A name that the daemon uses keeps the daemon's meaning. If a worker
  // reports a name twice, the first figure counts.
  void add_reported(MetricType type, const std::string& name, const std::string& help, double value,
                    Labels labels) {
    if (!taken_.contains(name)) put(type, name, help, value, std::move(labels));
  }
  void append_to(std::vector<MetricFamily>& all) {
    for (auto& [name, family] : families_)
      all.push_back(std::move(family));
  }

 private:
  void put(MetricType type, const std::string& name, const std::string& help, double value,
           Labels labels) {
    MetricFamily& family = families_[name];
    family.name = name;
    family.help = help;
    family.type = type;
    // The figures of one worker or device follow each other. To compare with all figures of the family would take
    // seconds if there are a thousand workers.
    if (!family.metric.empty() && family.metric.back().label == labels) return;
    ClientMetric metric;
    metric.label = std::move(labels);
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family.metric.push_back(std::move(metric));
  }

  std::map<std::string, MetricFamily> families_;
  std::set<std::string> taken_;
};

// A worker chooses the names of its counters, and the daemon does not trust it with them.
bool is_metric_name(const std::string& name) {
  if (name.empty() || name.size() > 100) return false;
  for (char c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  return true;
}

}  // namespace

struct Metrics::Impl {
  Impl(const Router& the_router, const DiskJournal* the_disk) : router(the_router), disk(the_disk) {
    for (const EventCounter* row : events::kCounters) {
      Family<Counter>& family =
          prometheus::BuildCounter().Name(row->name).Help(row->help).Register(registry);
      counters.emplace(row, &family);
      for (const char* value : row->shown) {
        if (value != nullptr) family.Add({{row->labels[0], value}});
      }
    }
    for (const EventTimes* row : events::kTimes) {
      Family<Histogram>& family =
          prometheus::BuildHistogram().Name(row->name).Help(row->help).Register(registry);
      const Histogram::BucketBoundaries bounds(row->bounds.begin(), row->bounds.end());
      times.emplace(row, &family.Add({}, bounds));
    }
  }

  const Router& router;
  const DiskJournal* disk;
  std::vector<std::function<std::vector<DaemonFigure>()>> figures;
  prometheus::Registry registry;
  std::map<const EventCounter*, Family<Counter>*> counters;
  std::map<const EventTimes*, Histogram*> times;
};

Metrics::Metrics(const Router& router, const DiskJournal* disk)
    : impl_(std::make_unique<Impl>(router, disk)) {}
Metrics::~Metrics() = default;

void Metrics::count(const EventCounter& what, std::initializer_list<std::string> labels,
                    std::uint64_t by) {
  std::map<std::string, std::string> named;
  for (std::size_t i = 0; i < labels.size(); ++i)
    named.emplace(what.labels.at(i), labels.begin()[i]);
  impl_->counters.at(&what)->Add(named).Increment(static_cast<double>(by));
}

void Metrics::time(const EventTimes& what, std::chrono::duration<double> took, std::size_t times) {
  Histogram& histogram = *impl_->times.at(&what);
  for (std::size_t i = 0; i < times; ++i)
    histogram.Observe(took.count());
}

void Metrics::add_figures(std::function<std::vector<DaemonFigure>()> figures) {
  impl_->figures.push_back(std::move(figures));
}

namespace {

void add_journal(Snapshot& now, const Journal& journal, const DiskJournal* disk) {
  now.gauge("bulkhead_journal_entries", "Unfinished requests in the journal",
            static_cast<double>(journal.size()));
  now.gauge("bulkhead_journal_bytes",
            "Bytes of accepted tokens, text and prompts' tokens in the journal",
            static_cast<double>(journal.bytes()));
  if (disk == nullptr) return;
  const DiskJournal::Figures figures = disk->figures();
  now.gauge("bulkhead_journal_disk_written", "1 while the journal on disk can be written",
            disk->failed() ? 0 : 1);
  now.gauge("bulkhead_journal_disk_file_bytes", "Size of the journal on disk",
            static_cast<double>(figures.file_bytes));
  now.counter("bulkhead_journal_disk_records_total", "Records appended to the journal on disk",
              static_cast<double>(figures.records));
  now.counter("bulkhead_journal_disk_commits_total",
              "Group commits: one write and one fdatasync of all that was gathered",
              static_cast<double>(figures.commits));
  now.counter("bulkhead_journal_disk_commit_seconds_total", "Time spent in group commits",
              static_cast<double>(figures.commit_microseconds) / 1e6);
  now.gauge("bulkhead_journal_disk_commit_average_seconds",
            "Mean time of all group commits so far; for the recent mean, divide the rates",
            figures.average_commit_seconds());
  now.counter("bulkhead_journal_disk_compactions_total", "Times the journal on disk was rewritten",
              static_cast<double>(figures.compactions));
  now.counter("bulkhead_journal_disk_recovered_requests_total",
              "Requests that an earlier daemon left unfinished, found at the start",
              static_cast<double>(figures.recovered_requests));
  now.counter("bulkhead_journal_disk_torn_bytes_total",
              "Bytes cut off the end of the journal on disk at the start",
              static_cast<double>(figures.torn_bytes));
  now.counter("bulkhead_journal_disk_damaged_bytes_total",
              "Damaged bytes skipped within the journal on disk at the start",
              static_cast<double>(figures.damaged_bytes));
  now.counter("bulkhead_journal_disk_failures_total", "Failed writes of the journal on disk",
              static_cast<double>(figures.failures));
  now.counter("bulkhead_journal_disk_recoveries_total",
              "Times the journal on disk could be written again",
              static_cast<double>(figures.recoveries));
}

// Adds figures that have one worker's label, and further labels if there are any.
class OfWorker {
 public:
  OfWorker(Snapshot& now, const std::string& worker) : now_(now), labels_{{"worker", worker}} {}

  void counter(const char* name, const char* help, std::uint64_t value) {
    now_.add(MetricType::Counter, name, help, static_cast<double>(value), labels_);
  }
  void gauge(const char* name, const char* help, double value) {
    now_.add(MetricType::Gauge, name, help, value, labels_);
  }
  void gauge_of(const ClientMetric::Label& label, const char* name, const char* help,
                double value) {
    add_of(MetricType::Gauge, label, name, help, value);
  }
  void counter_of(const ClientMetric::Label& label, const char* name, const char* help,
                  std::uint64_t value) {
    add_of(MetricType::Counter, label, name, help, static_cast<double>(value));
  }
  void reported(MetricType type, const std::string& name, const std::string& help, double value) {
    now_.add_reported(type, name, help, value, labels_);
  }

 private:
  void add_of(MetricType type, const ClientMetric::Label& label, const char* name, const char* help,
              double value) {
    Snapshot::Labels labels = labels_;
    labels.push_back(label);
    now_.add(type, name, help, value, std::move(labels));
  }

  Snapshot& now_;
  const Snapshot::Labels labels_;
};

// Adds the state of a worker or of one of its spares.
void add_state(OfWorker& out, const char* state, const Restarts& restarts) {
  out.gauge_of({"state", state}, "bulkhead_worker_state", "1 for the state that a worker is in", 1);
  for (std::size_t i = 0; i < kDeathCauses; ++i) {
    const auto cause = static_cast<DeathCause>(i);
    out.counter_of({"cause", to_string(cause)}, "bulkhead_worker_restarts_total",
                   "Successors started, by what ended the process before", restarts.of(cause));
  }
}

void add_supervision(Snapshot& now, const Worker& worker) {
  OfWorker out(now, worker.name());
  add_state(out, to_string(worker.state()), worker.restarts());
  out.counter("bulkhead_worker_takeovers_total", "Successors that were spares standing by",
              worker.takeovers());
  for (const auto& spare : worker.pool().spares()) {
    if (spare->leaving()) continue;
    OfWorker of_spare(now, spare->name());
    add_state(of_spare, to_string(spare->state()), spare->restarts());
  }
  out.counter("bulkhead_worker_recovered_requests_total", "Requests that survived a worker's death",
              worker.recovered_requests);
  const Vault& vault = worker.vault();
  out.gauge("bulkhead_worker_vault_held", "1 while memory of the worker would outlive it",
            vault.held() ? 1 : 0);
  out.counter("bulkhead_worker_vault_imports_total", "Successors that imported weights",
              vault.imports());
  out.counter("bulkhead_worker_vault_pages_adopted_total", "KV pages that successors adopted",
              vault.pages_adopted());
  out.counter("bulkhead_worker_vault_drops_total", "Vaults that no successor used", vault.drops());
  const ipc::VaultReport& report = worker.ready().vault;
  out.gauge("bulkhead_worker_vault_import_seconds",
            "Time that the serving process took to map the vault's memory",
            static_cast<double>(report.import_microseconds) / 1e6);
  out.gauge("bulkhead_worker_vault_adopt_seconds", "Adopting KV pages, by the same",
            static_cast<double>(report.adopt_microseconds) / 1e6);
  out.gauge("bulkhead_worker_requests_outstanding", "Requests that the worker has",
            static_cast<double>(worker.outstanding()));
}

void add_channel(Snapshot& now, const Worker& worker) {
  OfWorker out(now, worker.name());
  const ipc::ChannelStats ipc = worker.channel_stats();
  out.counter("bulkhead_ipc_records_sent_total", "Records to workers", ipc.records_sent);
  out.counter("bulkhead_ipc_records_received_total", "Records from workers", ipc.records_received);
  out.counter("bulkhead_ipc_bytes_sent_total", "Bytes to workers", ipc.bytes_sent);
  out.counter("bulkhead_ipc_bytes_received_total", "Bytes from workers", ipc.bytes_received);
  out.counter("bulkhead_ipc_full_stalls_total", "Sends that found no room in the ring",
              ipc.full_stalls);
  out.counter("bulkhead_ipc_doorbells_sent_total", "Wake-ups of workers", ipc.doorbells_sent);
  out.counter("bulkhead_ipc_sleeps_total", "Times the daemon slept on a channel", ipc.sleeps);
  out.gauge("bulkhead_ipc_depth_bytes", "Bytes that waited to be received at the last look",
            static_cast<double>(ipc.depth_bytes));
  out.gauge("bulkhead_ipc_max_depth_bytes", "Most bytes seen waiting to be received",
            static_cast<double>(ipc.max_depth_bytes));
  const TokenTraffic traffic = worker.token_traffic();
  out.counter("bulkhead_ipc_tokens_received_total", "Tokens from workers", traffic.tokens);
  out.counter("bulkhead_ipc_token_records_received_total",
              "Records that contained tokens from workers", traffic.records);
  out.counter("bulkhead_ipc_wakeups_total", "Times a worker's channel woke the daemon",
              traffic.wakeups);
  out.gauge("bulkhead_ipc_tokens_per_record",
            "Mean of all tokens so far; for the recent mean, divide the rates",
            traffic.tokens_per_record());
  out.gauge("bulkhead_ipc_wakeups_per_token",
            "Mean of all tokens so far; for the recent mean, divide the rates",
            traffic.wakeups_per_token());
}

// Figures from a worker's messages to which the daemon gives its own names.
void add_engine(Snapshot& now, const Worker& worker) {
  OfWorker out(now, worker.name());
  for (const ipc::Optimization& part : worker.ready().optimizations) {
    out.gauge_of({"part", part.name}, "bulkhead_worker_optimization_active",
                 "1 for a part of gpu_optimizations that runs, 0 for one that does not",
                 part.active ? 1 : 0);
  }
  const ipc::Stats& stats = worker.stats();
  out.counter("bulkhead_worker_steps_total", "Steps of the engine",
              static_cast<double>(stats.steps));
  out.gauge("bulkhead_worker_active_sequences", "Sequences being computed", stats.active_sequences);
  out.gauge("bulkhead_worker_waiting_sequences", "Sequences waiting in the worker",
            stats.waiting_sequences);
  out.gauge("bulkhead_worker_kv_pages_used", "KV pages in use",
            static_cast<double>(stats.kv_pages_used));
  out.gauge("bulkhead_worker_kv_pages", "All KV pages", static_cast<double>(stats.kv_pages_total));
}

// Each count of deaths begins with 0: Prometheus sees no increase in a series that begins with the first death.
void begin_deaths(Family<Counter>& deaths, const std::string& worker) {
  for (std::size_t i = 0; i < kDeathCauses; ++i) {
    const auto cause = static_cast<DeathCause>(i);
    if (cause != DeathCause::kAsked)  // which is no death
      deaths.Add({{"worker", worker}, {"cause", to_string(cause)}});
  }
}

void add_reported(Snapshot& now, const Worker& worker) {
  OfWorker out(now, worker.name());
  for (const ipc::Counter& own : worker.stats().counters) {
    if (!is_metric_name(own.name)) continue;
    const WorkerFigure* const row = find_worker_figure(own.name);
    const bool counts = row != nullptr && row->kind == WorkerFigure::Kind::kCounter;
    const MetricName shown = metric_name(own.name, counts);
    out.reported(counts ? MetricType::Counter : MetricType::Gauge, shown.name,
                 row != nullptr ? row->help_with_unit() : "Reported by the worker",
                 own.value * shown.scale);
  }
}

}  // namespace

std::string Metrics::text(std::size_t connections) const {
  Snapshot now;
  const Router& router = impl_->router;
  now.gauge("bulkhead_requests_outstanding", "Requests accepted and unfinished",
            static_cast<double>(router.outstanding()));
  now.gauge("bulkhead_requests_waiting", "Unfinished requests that no worker has now",
            static_cast<double>(router.waiting()));
  now.gauge("bulkhead_connections", "Open HTTP connections", static_cast<double>(connections));
  now.gauge("bulkhead_ready", "1 when every model has a worker that serves",
            router.ready() ? 1 : 0);
  now.counter("bulkhead_model_loads_total", "Loads of models that were not loaded",
              static_cast<double>(router.loads()));
  now.counter("bulkhead_model_unloads_total",
              "Models unloaded, by request or to make room for others",
              static_cast<double>(router.unloads()));
  add_journal(now, router.journal(), impl_->disk);
  for (const auto& part : impl_->figures) {
    for (const DaemonFigure& figure : part()) {
      Snapshot::Labels labels;
      if (!figure.label.empty()) labels.push_back({figure.label, figure.label_value});
      if (!figure.more_label.empty())
        labels.push_back({figure.more_label, figure.more_label_value});
      now.add(figure.counts ? MetricType::Counter : MetricType::Gauge, figure.name, figure.help,
              figure.value, std::move(labels));
    }
  }
  for (const auto& worker : router.workers()) {
    add_supervision(now, *worker);
    add_channel(now, *worker);
    add_engine(now, *worker);
  }
  for (const auto& worker : router.workers())
    begin_deaths(*impl_->counters.at(&events::kWorkerDeaths), worker->name());
  now.reserve(events::kWorkerDeaths.name);  // the registry has no such figure without workers
  for (const auto& worker : router.workers())
    add_reported(now, *worker);
  std::vector<MetricFamily> all = impl_->registry.Collect();
  now.append_to(all);
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace bulkhead::orchestrator
