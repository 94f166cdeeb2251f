// bulkheadd: starts the daemon's parts, and ends them in order.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/base/log.hpp"
#include "config/base/loopback.hpp"
#include "config/base/percent.hpp"
#include "config/base/program_options.hpp"
#include "config/base/standard_descriptors.hpp"
#include "config/config.hpp"
#include "config/http_address.hpp"
#include "orchestrator/event_loop.hpp"
#include "orchestrator/http/api.hpp"
#include "orchestrator/http/server.hpp"
#include "orchestrator/journal/disk_journal.hpp"
#include "orchestrator/memory_reserve.hpp"
#include "orchestrator/metrics/host_figures.hpp"
#include "orchestrator/metrics/metrics.hpp"
#include "orchestrator/metrics/nvidia_watch.hpp"
#include "orchestrator/reloader.hpp"
#include "orchestrator/router/router.hpp"
#include "orchestrator/service_manager.hpp"
#include "orchestrator/supervisor/control_groups.hpp"
#include "orchestrator/supervisor/worker_log.hpp"
#include "orchestrator/tracing/span_export.hpp"

namespace {

using namespace bulkhead;
using namespace bulkhead::orchestrator;

struct CommandLine {
  std::string config_file;
  std::string model;
  std::vector<std::string> assignments;
};

constexpr const char* kFooter = R"(Examples:
  bulkheadd                                   the built-in model on http://127.0.0.1:8484
  bulkheadd --model qwen2.5-7b-q4_k_m.gguf    a model of yours
  bulkheadd --set server.port=0               any free port; the line on stdout tells which
  bulkheadd --config config/runtime.yaml --set ipc.transport=stdio

Settings come from their defaults, then the file (--config, or
BULKHEAD_CONFIG), then --set. BULKHEAD_API_KEY, when set, is the API key,
whatever they say. `bulkhead check --config FILE` checks a file.
SIGTERM or SIGINT: running answers are finished, then the daemon ends. A
second one ends it at once.
SIGHUP: the settings are read again; models that were added, removed or
changed follow, and no answer is lost.
Exit code: 0; 1 for an error, with a message on stderr; 2 for a wrong command
line; 128 and the signal's number where a second signal ended it.)";

constexpr int kUsageError = 2;
// How long the daemon's end waits for the readers of its log and its stdout.
constexpr std::chrono::milliseconds kLastWords{500};

int fail(const std::string& message) {
  log::write_raw("bulkheadd: " + message + "\n");
  return 1;
}

// Ignores the signals that do not mean "end": the reader of the log may go away (SIGPIPE), a file may reach its size
// limit (SIGXFSZ), and a timer or a terminal that the daemon shares with other processes may send a signal. By
// default each of these would end the daemon. SIGTERM, SIGINT and SIGHUP keep their meaning, and so do SIGQUIT,
// SIGABRT and the signals of a broken program. Workers start with the defaults.
void ignore_what_is_no_request_to_end() {
  for (const int number : {SIGPIPE, SIGXFSZ, SIGXCPU, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF,
                           SIGIO, SIGPWR, SIGSTKFLT, SIGTTIN, SIGTTOU})
    std::signal(number, SIG_IGN);
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number)
    std::signal(number, SIG_IGN);
}

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns the program beside this one, unless a test names another one.
std::string worker_program() {
  std::string given = from_environment("BULKHEAD_WORKER");
  if (!given.empty()) return given;
  std::error_code error;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (error ? std::filesystem::path(".") : self.parent_path()) / "bulkhead-worker";
}

// Raises the soft limit of descriptors (1024 by default), because clients and workers each need some.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A worker must not inherit descriptors that this process got from a shell or a service manager.
void close_descriptors_on_exec() {
  std::error_code error;
  std::vector<int> descriptors;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    descriptors.push_back(std::atoi(entry.path().filename().c_str()));
  }
  for (int fd : descriptors) {
    if (fd > 2) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

// Shows how far loading is: on a terminal as one line of stderr that changes, otherwise as a line of the log for each
// stage and each quarter of it.
class LoadingProgress {
 public:
  explicit LoadingProgress(bool log_is_text) : terminal_(log_is_text && ::isatty(2) != 0) {}

  void show(const Router& router) {
    std::string shown;
    for (const auto& worker : router.workers()) {
      if (worker->state() != WorkerState::kLoading || worker->ever_ready()) continue;
      const ipc::Progress& progress = worker->progress();
      if (progress.stage.empty()) continue;
      const int percent = percent_of(progress.done, progress.total);
      std::string line = worker->name() + ": " + printable(progress.stage);
      if (progress.total != 0) line += " " + std::to_string(percent) + "%";
      if (terminal_) {
        shown += "\r\033[K" + line;
        pending_ = true;
      } else if (std::string step = progress.stage + std::to_string(percent / 25);
                 std::exchange(last_[worker->name()], step) != step) {
        spdlog::info("worker {}", line);
      }
    }
    log::write_raw(shown);
  }
  void finish() {
    if (pending_) log::write_raw("\r\033[K");
    pending_ = false;
  }

 private:
  // The worker's words go to a terminal, so control characters are removed.
  static std::string printable(std::string text) {
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return text.substr(0, 100);
  }

  bool terminal_;
  bool pending_ = false;
  std::map<std::string, std::string> last_;  // what was shown last of each worker
};

std::vector<DaemonFigure> figures_of_loop_and_log(const EventLoop& loop) {
  const LoopWatch::Figures watch = loop.figures();
  const LineWriter::Figures log = log::figures();
  const WorkerLogs::Figures workers = WorkerLogs::instance().figures();
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  return {
      {"bulkhead_loop_longest_stall_seconds",
       "Longest time that one call blocked the event loop, and what it was doing",
       std::chrono::duration<double>(watch.longest).count(), false, "doing", watch.longest_doing},
      {"bulkhead_loop_stalls_total", "Calls that blocked the event loop for 50 ms or longer",
       number(watch.stalls)},
      {"bulkhead_loop_exceptions_total", "Calls of the event loop that ended with an exception",
       number(watch.exceptions)},
      {"bulkhead_log_lines_total", "Lines of the log, including workers' lines", number(log.lines)},
      {"bulkhead_log_dropped_lines_total",
       "Log lines that were never written because the log's reader was too slow or gone",
       number(log.dropped)},
      {"bulkhead_worker_log_lines_total", "Lines of workers that were passed on to the log",
       number(workers.lines)},
      {"bulkhead_worker_log_dropped_lines_total",
       "Lines of workers that were dropped because they wrote too much", number(workers.dropped)},
  };
}

// The machine and its devices. Each Xid error is counted once: by the kernel's log, or if that can't be read, by what
// NVIDIA's driver reports.
class MachineWatch {
 public:
  explicit MachineWatch(const std::string& nvml_library)
      : nvidia_({.program = worker_program(), .nvml_library = nvml_library}) {}

  std::vector<DaemonFigure> figures() {
    std::vector<DaemonFigure> all = host_.figures();
    std::ranges::move(nvidia_.figures(!host_.reads_kernel_log()), std::back_inserter(all));
    return all;
  }

 private:
  HostWatch host_;
  NvidiaWatch nvidia_;
};

std::vector<DaemonFigure> figures_of_server(const Server& server) {
  const Server::Figures now = server.figures();
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  return {
      {"bulkhead_http_memory_bytes",
       "Memory of request bodies and unsent answers (limit: server.max_memory_mb)",
       number(now.memory_bytes), false},
      {"bulkhead_http_memory_most_bytes", "Most memory of request bodies and unsent answers so far",
       number(now.most_memory_bytes), false},
      {"bulkhead_http_no_memory_total", "Requests refused because server.max_memory_mb was used up",
       number(now.no_memory)},
      {"bulkhead_http_bad_framing_total", "Requests that broke a rule of HTTP/1.1",
       number(now.bad_framing)},
      {"bulkhead_http_slow_senders_total", "Requests that did not arrive in time",
       number(now.slow_senders)},
      {"bulkhead_http_exceptions_total", "Connections ended by an exception",
       number(now.exceptions)},
      {"bulkhead_http_refused_connections_total",
       "Connections refused because all places were taken", number(now.refused)},
      {"bulkhead_http_idle_closed_total", "Idle connections ended to make place for others",
       number(now.idle_closed)},
  };
}

// Returns the settings that name these models.
std::string settings_of(const std::vector<std::string>& models) {
  std::string line = "bulkheadd";
  for (std::size_t i = 0; i < models.size(); ++i)
    line += fmt::format(" --set models.{}.path={}", i, models[i]);
  return line;
}

bool is_model_file(std::string_view word) {
  return word.ends_with(".gguf");
}

// Returns a word that stands alone with the option that takes it.
std::string with_its_option(const std::string& word) {
  const bool setting =
      word.find('=') != word.npos && !config::key_meant_by(word.substr(0, word.find('='))).empty();
  if (setting) return "--set " + word;
  const bool settings_file = word.ends_with(".yaml") || word.ends_with(".yml");
  return (settings_file ? "--config " : "--model ") + word;
}

// Returns advice for a user who gave a file or a setting in the form that other servers take.
std::string what_was_meant(int argc, char** argv) {
  std::vector<std::string> models;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("--model=")) models.push_back(word.substr(word.find('=') + 1));
    if (word == "--model" && i + 1 < argc) models.emplace_back(argv[i + 1]);
  }
  if (models.size() > 1) return "write `" + settings_of(models) + "` for several models";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "serve" || word == "start" || word == "run") {
      if (i + 1 == argc) return "leave out '" + word + "': `bulkheadd` serves";
      continue;
    }
    if (!word.starts_with("-")) return "write `bulkheadd " + with_its_option(word) + "`";
    if (word == "--config" || word == "--model" || word == "--set") {
      ++i;  // skips the setting's value, too
      const bool value_apart = word == "--set" && i + 1 < argc && argv[i + 1][0] != '-' &&
                               !config::key_meant_by(argv[i]).empty();
      if (value_apart) return fmt::format("write `--set {}={}`", argv[i], argv[i + 1]);
      continue;
    }
    if (word.starts_with("--config=") || word.starts_with("--model=") || word.starts_with("--set="))
      continue;
    const std::string name = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    const std::string key = config::key_meant_by(name.substr(0, name.find('=')));
    if (!key.empty()) return "write `--set " + key + "=VALUE`";
    // Another server's option has a value of its own, which is no file to serve.
    const bool file_follows = i + 1 < argc && is_model_file(argv[i + 1]);
    if (!file_follows) break;
  }
  return "`bulkheadd --help` shows what there is";
}

// Sets the limits and signals that this process needs, whatever its parent has set.
void prepare_process() {
  raise_descriptor_limit();
  close_descriptors_on_exec();
  // A parent may have ignored SIGCHLD; the kernel would then reap this process's children.
  std::signal(SIGCHLD, SIG_DFL);
  std::signal(SIGHUP, SIG_IGN);  // until the daemon can reload its settings
}

std::unique_ptr<ControlGroups> control_groups(const config::IsolationSettings& isolation) {
  if (isolation.cgroups == config::ControlGroupMode::kOff)
    return std::make_unique<ControlGroups>("isolation.cgroups is off");
  return std::make_unique<ControlGroups>(ControlGroupPlaces());
}

// Returns nothing to read and no file without a path.
Result<DiskJournal::Opened> open_journal(EventLoop& loop, const std::string& path) {
  if (path.empty()) return DiskJournal::Opened{};
  return DiskJournal::open(loop, {.path = path});
}

// Returns null without server.otlp_endpoint.
std::unique_ptr<SpanExport> span_export(const config::ServerSettings& settings, Metrics& metrics) {
  if (settings.otlp_endpoint.empty()) return nullptr;
  auto spans = std::make_unique<SpanExport>(SpanExport::Options{
      .collector = *config::parse_http_address(settings.otlp_endpoint),  // the settings are checked
      .version = BULKHEAD_VERSION});
  metrics.add_figures([export_to = spans.get()] { return export_to->figures(); });
  return spans;
}

std::string listening_line(std::string host, std::uint16_t port) {
  if (host.find(':') != std::string::npos && host.front() != '[') host = "[" + host + "]";
  return fmt::format("listening on http://{}:{}", host, port);
}

int serve(const config::Sources& sources, config::Settings settings) {
  prepare_process();
  const bool loopback = is_loopback(settings.server.host);

  // The reader of stdout may be slow, as the log's may; the daemon serves all the same.
  LineWriter standard_output(STDOUT_FILENO);
  EventLoop loop;
  ServiceManager service(loop);
  Server server(loop, {settings.server.host, static_cast<std::uint16_t>(settings.server.port),
                       std::size_t{settings.server.max_body_mb} << 20,
                       std::size_t{settings.server.max_memory_mb} << 20});
  std::vector<UniqueFd> passed = service.take_descriptors();
  Status listening = passed.empty() ? server.listen() : server.listen_at(std::move(passed));
  if (!listening.ok()) return fail(listening.error().message());

  Result<DiskJournal::Opened> disk = open_journal(loop, settings.isolation.journal_path);
  if (!disk.ok()) return fail(disk.error().message());

  const std::unique_ptr<ControlGroups> groups = control_groups(settings.isolation);
  Router router(loop, {worker_program(), settings, groups.get()});
  Metrics metrics(router, disk->journal.get());
  metrics.add_figures([&loop] { return figures_of_loop_and_log(loop); });
  metrics.add_figures([&server] { return figures_of_server(server); });
  MachineWatch machine(settings.server.nvml_library);
  metrics.add_figures([&machine] { return machine.figures(); });
  const std::unique_ptr<SpanExport> spans = span_export(settings.server, metrics);
  ResumableStreams streams(loop, router, metrics, disk->journal.get(),
                           ResumableStreams::options_of(settings));
  Api api(loop, router, metrics, streams, {settings.server, loopback});
  api.export_spans(spans.get());
  streams.export_spans(spans.get());
  api.connection_count = [&server] { return server.connections(); };
  metrics.add_figures([&api] { return api.figures(); });

  int exit_code = 0;
  LoadingProgress progress(settings.log.format == "text");
  auto stop_workers = [&] { router.stop([&] { loop.stop(); }); };
  router.on_death = [&](const std::string& name, DeathCause cause) {
    metrics.count(events::kWorkerDeaths, {name, to_string(cause)});
  };
  router.on_change = [&] {
    if (!router.was_ready()) progress.show(router);
  };
  router.on_ready = [&] {
    progress.finish();
    const std::string line = listening_line(settings.server.host, server.port());
    standard_output.put(line + "\n");
    service.ready(line);
  };
  router.on_failed_start = [&](const std::string& reason) {
    if (router.was_ready()) return;
    progress.finish();
    exit_code = fail("can't serve " + reason);
    stop_workers();
  };
  loop.on_termination_signal([&, asked = false](int signal) mutable {
    if (asked) {
      router.kill_workers();
      (void)log::finish(kLastWords / 5);
      std::_Exit(128 + signal);
    }
    asked = true;
    progress.finish();
    spdlog::info("signal {}: finishing {} request(s), then ending", signal, router.outstanding());
    service.ending(fmt::format("finishing {} request(s)", router.outstanding()));
    router.begin_drain([&] { server.close(stop_workers); });
  });

  Reloader reloader({loop, sources, worker_program(), settings, router, server, api, streams});
  loop.on_hangup_signal([&] { reloader.reload(); });

  streams.recover(std::move(disk->requests), api.limits());
  server.serve(api);
  router.start();
  loop.run();
  (void)standard_output.flush(kLastWords);
  return exit_code;
}

// Removes keys from the command line once it has been read, because every user of the machine can read it
// (/proc/PID/cmdline, ps).
void hide_keys(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    for (const std::string_view setting : {"server.api_key=", "server.keys="}) {
      const std::size_t at = std::string_view(argv[i]).find(setting);
      if (at == std::string_view::npos) continue;
      char* const secret = argv[i] + at + setting.size();
      std::memset(secret, '*', std::strlen(secret));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors(O_RDWR, O_RDWR);
  ignore_what_is_no_request_to_end();
  ProgramOptions options{
      "Serves language models over an OpenAI-compatible HTTP API, each in a worker process of its "
      "own.",
      "bulkheadd"};
  options.footer(kFooter);
  options.version("bulkheadd " BULKHEAD_VERSION);
  CommandLine line;
  options.add("--config", line.config_file, "Settings file (YAML)").not_empty();
  options.add("--model", line.model, "GGUF file to serve (models.0.path)").not_empty();
  options.add("--set", line.assignments, "A setting as key=value; may be given several times")
      .repeated();
  const Result<bool> read = options.read(argc, argv);
  if (!read.ok()) {
    fail(read.error().message() + "; " + what_was_meant(argc, argv));
    return kUsageError;
  }
  if (!*read) return 0;
  hide_keys(argc, argv);

  config::Sources sources;
  sources.file = line.config_file.empty() ? from_environment("BULKHEAD_CONFIG") : line.config_file;
  if (!line.model.empty()) sources.assignments.push_back("models.0.path=" + line.model);
  sources.assignments.insert(sources.assignments.end(), line.assignments.begin(),
                             line.assignments.end());
  Result<config::Loaded> loaded = load_settings(sources, worker_program());
  if (!loaded.ok()) return fail(loaded.error().message());
  Status logging = log::init(loaded->settings.log.level, loaded->settings.log.format, "bulkheadd");
  if (!logging.ok()) return fail(logging.error().message());
  log::write_in_background();
  keep_lines_about_workers();
  MemoryReserve::install();
  for (const config::Notice& notice : loaded->notices)
    spdlog::warn("{}: {}", notice.where, notice.message);
  int exit_code = 0;
  try {
    exit_code = serve(sources, loaded->settings);
  } catch (const std::exception& error) {
    exit_code = fail(std::string("unexpected: ") + error.what());
  }
  (void)WorkerLogs::instance().catch_up(kLastWords);
  (void)log::finish(kLastWords);
  return exit_code;
}
