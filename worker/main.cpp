// bulkhead-worker serves one model on one device, in a process that may die at any time. The daemon starts it and
// gives it a channel. It opens no socket, runs no program and writes nothing outside its cache folder.
//
// Its exit code (ipc/exit_codes.hpp) says how it ended. If the model could not be loaded, or serving failed, its last
// message says why.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/cache_home.hpp"
#include "config/base/log.hpp"
#include "config/base/program_options.hpp"
#include "config/base/unique_fd.hpp"
#include "config/config.hpp"
#include "config/draft_file.hpp"
#include "config/template_path.hpp"
#include "ipc/channel.hpp"
#include "ipc/exit_codes.hpp"
#include "worker/engine/engine.hpp"
#include "worker/main_describe.hpp"
#include "worker/main_load.hpp"
#include "worker/main_loop.hpp"
#include "worker/main_machine.hpp"
#include "worker/main_nvidia.hpp"
#include "worker/main_outbox.hpp"
#include "worker/main_sandbox.hpp"
#include "worker/main_vault.hpp"
#include "worker/model/file_facts.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph_encoder.hpp"
#include "worker/model/opened_files.hpp"

namespace bulkhead::worker {
namespace {

constexpr std::chrono::milliseconds kLastWords{1000};

// Returns the only folder that a worker writes to, with mode 0700. Returns an empty path, with a warning, if there is
// none; pipelines are then compiled at each start. The folder belongs to the user that this process is about to become.
std::string cache_folder(const std::string& asked, const AskedUser& user) {
  namespace fs = std::filesystem;
  const fs::path folder = asked.empty() ? cache_home() : asked;
  if (folder.empty()) {
    spdlog::warn(
        "no cache folder: neither XDG_CACHE_HOME nor HOME is set; every start compiles all "
        "kernels");
    return {};
  }
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  const auto failed = [&error] { error.assign(errno, std::generic_category()); };
  if (!error && ::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) failed();
  // The folder must not be a link, and gets this mode whatever the umask is.
  if (!error) {
    const UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    struct stat status {};
    if (!opened.valid() || ::fstat(opened.get(), &status) != 0) {
      failed();
    } else if (status.st_uid != ::geteuid() && user.id != status.st_uid) {
      error = std::make_error_code(std::errc::operation_not_permitted);
    } else if ((status.st_mode & 0777) != 0700 && ::fchmod(opened.get(), 0700) != 0) {
      failed();
    } else if (user.id.has_value() && user.id != status.st_uid &&
               ::fchown(opened.get(), *user.id, *user.id) != 0) {
      failed();
    }
  }
  if (!error && ::access(folder.c_str(), W_OK | X_OK) != 0) failed();
  if (!error) return folder.string();
  spdlog::warn("no cache folder: {}: {}; every start compiles all kernels", folder.string(),
               error.message());
  return {};
}

// Returns how embeddings are pooled: as engine.pooling says, otherwise as the model's file says.
engine::Pooling pooling_of(const config::EngineSettings& settings, const Loaded& loaded) {
  // The device pools what an encoder computes, into the last column.
  if (is_encoder(loaded.graph)) return engine::Pooling::kLast;
  switch (settings.pooling) {
    case config::Pooling::kMean:
      return engine::Pooling::kMean;
    case config::Pooling::kLast:
      return engine::Pooling::kLast;
    case config::Pooling::kAuto:
      break;
  }
  using model::PoolingType;
  const auto found = loaded.file->get_uint(loaded.graph.architecture + ".pooling_type");
  const std::uint64_t number = found.ok() ? found->value_or(0) : 0;
  const auto is = [number](PoolingType type) { return number == static_cast<std::uint64_t>(type); };
  if (is(PoolingType::kMean)) return engine::Pooling::kMean;
  if (!is(PoolingType::kNone) && !is(PoolingType::kLast) && !is(PoolingType::kRank)) {
    spdlog::warn(
        "the model's file pools embeddings in way {}, which is not supported for decoders: the "
        "last token's are taken (engine.pooling)",
        number);
  }
  return engine::Pooling::kLast;
}

// Returns the token as the vocabulary writes it, for clients who want to know.
std::string special_token(const model::Tokenizer& tokenizer, std::optional<model::TokenId> token) {
  if (!token.has_value() || *token >= tokenizer.size()) return "";
  const std::string_view text = tokenizer.vocabulary_text(*token);
  return text.size() <= ipc::kMostSpecialTokenBytes ? std::string(text) : "";
}

ipc::Ready ready_message(const Loaded& loaded, const engine::Engine& engine,
                         std::chrono::milliseconds load_time) {
  const engine::ExecutorLimits& limits = loaded.executor->limits();
  ipc::Ready ready;
  describe_model(*loaded.file, loaded.graph, loaded.language, ready);
  ready.device = loaded.executor->device_name();
  ready.numerics_id = loaded.executor->numerics_id();
  ready.context_limit = engine.scheduler().sequence_limit();
  ready.kv_cache_tokens = std::uint64_t{limits.pages_at_first()} * limits.page_tokens;
  ready.weight_bytes = loaded.executor->weight_bytes();
  ready.load_milliseconds = static_cast<std::uint64_t>(load_time.count());
  ready.bos_token = special_token(*loaded.tokenizer, loaded.tokenizer->bos());
  ready.eos_token = special_token(*loaded.tokenizer, loaded.tokenizer->eos());
  for (const auto& part : loaded.executor->optimizations()) {
    ready.optimizations.push_back({part.name, part.active, part.reason});
  }
  return ready;
}

bool device_failed(const Error& error) {
  return error.code() == ErrorCode::kDeviceLost || error.code() == ErrorCode::kDeadlineExceeded;
}

// Says why, and ends the process at once: after a device loss, a driver may hang in its own clean-up.
[[noreturn]] void die(Outbox& outbox, int code, const Error& error) {
  spdlog::error("{}", error.message());
  outbox.send(ipc::Fatal{error.message()});
  outbox.drain(kLastWords);
  spdlog::default_logger()->flush();
  std::_Exit(code);
}

// The sandbox's filter recognises a region that is not sealed by its descriptor's number. The channel has closed
// that descriptor, so without this the next file would get its number, and the filter would refuse to change that
// file's size.
void keep_number(int region) {
  if (region < 0 || ::fcntl(region, F_GETFD) >= 0) return;
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || null == region) return;
  ::dup2(null, region);
  ::close(null);
}

engine::Speculation speculation_of(config::Speculation setting) {
  switch (setting) {
    case config::Speculation::kOff:
      return engine::Speculation::kOff;
    case config::Speculation::kNgram:
      return engine::Speculation::kNgram;
    case config::Speculation::kAlways:
      return engine::Speculation::kAlways;
  }
  return engine::Speculation::kOff;
}

engine::EngineOptions engine_options(const config::Settings& settings, const Loaded& loaded,
                                     std::size_t max_message_bytes) {
  engine::EngineOptions options;
  options.scheduler = {loaded.executor->limits().max_sequences, settings.engine.prefill_chunk,
                       settings.engine.prefix_cache, settings.engine.prefill_chunk_alone,
                       std::chrono::milliseconds(settings.engine.max_token_gap_ms)};
  options.pooling = pooling_of(settings.engine, loaded);
  options.speculation = speculation_of(settings.engine.speculation);
  options.draft_model = loaded.draft.get();
  for (const model::SamplerAdvice& each : model::sampler_advice(*loaded.file))
    options.sampler_advice.push_back({each.name, each.value});
  options.flush_tokens = settings.ipc.flush_tokens;
  options.flush_interval = std::chrono::microseconds(settings.ipc.flush_interval_us);
  options.max_message_bytes = max_message_bytes;
  options.longest_step = std::min(
      options.longest_step,
      std::chrono::milliseconds(std::max(1U, settings.isolation.heartbeat_timeout_ms / 4)));
  options.check_memory = std::chrono::seconds(settings.isolation.check_memory_s);
  options.keep_slabs = std::chrono::seconds(settings.engine.kv_keep_s);
  return options;
}

// Logs what the worker has less of than was asked for.
void tell_what_is_less(const config::Settings& settings, const engine::Executor& executor,
                       std::uint32_t context) {
  const engine::ExecutorLimits& limits = executor.limits();
  if (context < limits.asked_context) {
    spdlog::warn(
        "the context is {} tokens and not {}: the KV cache holds no more (engine.kv_cache_mb, or "
        "what the device has free)",
        context, limits.asked_context);
  }
  if (settings.engine.prefill_chunk > limits.max_columns) {
    spdlog::warn("steps have {} columns at most on {}, and not engine.prefill_chunk {}",
                 limits.max_columns, executor.device_name(), settings.engine.prefill_chunk);
  }
}

int serve(const Arguments& arguments, const config::Settings& settings,
          const std::vector<Protection>& confined_by) {
  ipc::InheritedDescriptors inherited;
  inherited.socket = arguments.channel;
  inherited.region = arguments.region;
  auto opened = ipc::open_worker_channel(inherited, settings.ipc);
  if (!opened.ok()) {
    spdlog::error("the channel: {}", opened.error().message());
    return ipc::kExitUsage;
  }
  keep_number(arguments.region);
  ipc::Channel& channel = **opened;
  Outbox outbox(channel);
  outbox.send(ipc::Hello{ipc::protocol_version(), static_cast<std::uint32_t>(::getpid()),
                         BULKHEAD_VERSION});

  const auto begin = std::chrono::steady_clock::now();
  ProgressReporter progress(channel, outbox);
  MainVault vault(channel, outbox, arguments.vault && settings.isolation.vault);
  if (const Status status = vault.receive(); !status.ok())
    die(outbox, vault.given() ? ipc::kExitVaultUnusable : ipc::kExitInternal, status.error());
  if (arguments.standby) vault.leave_slabs();
  Loaded loaded;
  if (const Status status = load(arguments, settings, progress, vault, loaded); !status.ok()) {
    die(outbox,
        vault.given()                   ? ipc::kExitVaultUnusable
        : device_failed(status.error()) ? ipc::kExitDeviceLost
                                        : ipc::kExitLoad,
        status.error());
  }
  model::close_early();

  engine::EngineOptions options = engine_options(settings, loaded, channel.max_record_bytes());
  engine::Engine engine(*loaded.executor, loaded.language, std::move(options),
                        [&outbox](const ipc::FromWorker& message) { outbox.send(message); });
  const auto load_time = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  ipc::Ready ready = ready_message(loaded, engine, load_time);
  for (const Protection& each : confined_by)
    ready.protections.push_back({each.name, each.active, each.detail});
  tell_what_is_less(settings, *loaded.executor, ready.context_limit);
  const auto serve_with_vault = [&](bool may_adopt_kv, MainVault::Writer writer) {
    return vault.begin(*loaded.executor, *loaded.file, engine, may_adopt_kv, writer);
  };
  ready.vault = arguments.standby
                    ? vault.stand_by(*loaded.executor)
                    : serve_with_vault(vault.may_adopt_kv(), MainVault::Writer::kGone).value();
  if (!arguments.cache.empty()) let_clock_of_files_pass();
  outbox.send(ready);
  vault.give_back_slabs();
  if (arguments.standby) spdlog::debug("standing by");

  const auto promoted = [&](const ipc::Promote& promote, ipc::Ready& again) {
    if (const Status whole = vault.check_again(*loaded.executor); !whole.ok())
      die(outbox, device_failed(whole.error()) ? ipc::kExitDeviceLost : ipc::kExitVaultUnusable,
          whole.error());
    const auto report =
        serve_with_vault(promote.may_adopt_kv, promote.unsettled ? MainVault::Writer::kUnsettled
                                                                 : MainVault::Writer::kGone);
    if (report.has_value()) again.vault = *report;
    return report.has_value();
  };
  MainLoop loop(
      channel, outbox, engine, std::move(ready), promoted, [&vault] { return vault.offer_again(); },
      settings.ipc);
  if (const Status status = loop.run(); !status.ok()) {
    die(outbox, device_failed(status.error()) ? ipc::kExitDeviceLost : ipc::kExitInternal,
        status.error());
  }
  outbox.drain(kLastWords);
  return ipc::kExitStopped;
}

void open_what_it_reads(const Arguments& arguments) {
  model::open_early(model::model_files(arguments.model));
  if (config::is_draft_file(arguments.draft))
    model::open_early(model::model_files(arguments.draft));
  if (config::is_template_path(arguments.chat_template))
    model::open_early({arguments.chat_template});
}

// Adds the program's options, which write to `arguments`; --no-cache sets `no_cache`.
void add_options(ProgramOptions& options, Arguments& arguments, bool& no_cache) {
  options.add("--model", arguments.model, "GGUF file, or \"builtin\"").show_default();
  options.add("--name", arguments.name, "what the log calls this worker");
  options.add("--device", arguments.device, "auto, cpu, an index, or part of a device's name")
      .show_default();
  options
      .add("--split", arguments.split,
           "layers: --device is a list of devices, 0,1, which share the model's layers; or none")
      .show_default();
  options.add("--context", arguments.context,
              "tokens a sequence may have; 0: the model's own limit");
  options.add("--cores", arguments.cores, "numbers of the cores that it may run on; default: any")
      .comma_separated();
  options.add("--chat-template", arguments.chat_template,
              "a template's file, or its name in the model file; empty: the file's own");
  options.add("--draft", arguments.draft,
              "GGUF file of a small model of the same vocabulary that guesses tokens; mtp: the "
              "model's own block does");
  options.add("--channel", arguments.channel, "inherited descriptor of the socket to the daemon");
  options.flag("--describe", arguments.describe,
               "write a message on stdout that says what the model's file holds, and end");
  options.add("--region", arguments.region,
              "inherited descriptor of the shared region; without it: stdio");
  const auto cache = options.add("--cache", arguments.cache,
                                 "folder for compiled kernels (default: ~/.cache/bulkhead)");
  options.flag("--no-cache", no_cache, "compile them at each start").excludes(cache);
  options.flag("--beside-others", arguments.beside_others,
               "other workers may need the device's memory, too");
  options.flag("--standby", arguments.standby, "take no request before the daemon promotes it");
  options.add("--pid-namespace", arguments.pid_namespace,
              "what the daemon says of the namespace of process ids that it starts workers in");
  options.add(
      "--user", arguments.user,
      "id of the user and the group that it becomes once it is confined, or why there is none");
  options.flag("--vault", arguments.vault,
               "the daemon's first message says what an earlier process left");
  options.add("--set", arguments.assignments, "a setting, key=value").repeated();
}

int run(int argc, char** argv) {
  Arguments arguments;
  bool no_cache = false;
  ProgramOptions options{
      "Serves one model on one device in a process of its own. bulkheadd starts this program and "
      "talks to it\n"
      "over an inherited channel, so it is of no use by hand. To serve a model: bulkheadd "
      "--model FILE.\n"
      "To look at a model file: bulkhead inspect FILE.",
      "bulkhead-worker"};
  add_options(options, arguments, no_cache);
  if (argc == 1) {
    std::fprintf(stderr, "%s", options.help().c_str());
    return ipc::kExitUsage;
  }
  if (argc == 2 && std::string_view(argv[1]) == "--list-devices") return list_devices();
  if (argc >= 3 && std::string_view(argv[1]) == "--find-devices")
    return find_devices({argv + 2, argv + argc});
  if (argc == 3 && std::string_view(argv[1]) == "--watch-nvidia") return watch_nvidia(argv[2]);
  const Result<bool> read = options.read(argc, argv);
  if (!read.ok()) {
    std::fprintf(stderr, "bulkhead-worker: %s; --help shows what there is\n",
                 read.error().message().c_str());
    return ipc::kExitUsage;
  }
  if (!*read) return 0;
  if (arguments.channel < 0 && !arguments.describe) {
    std::fprintf(stderr, "bulkhead-worker: --channel is required; --help shows what there is\n");
    return ipc::kExitUsage;
  }

  config::Settings settings;
  for (const std::string& assignment : arguments.assignments) {
    if (const Status status = config::assign(settings, assignment); !status.ok()) {
      std::fprintf(stderr, "bulkhead-worker: --set: %s\n", status.error().message().c_str());
      return ipc::kExitUsage;
    }
  }
  const std::string program = arguments.name.empty() ? "worker" : "worker " + arguments.name;
  if (const Status status = log::init(settings.log.level, settings.log.format, program);
      !status.ok()) {
    std::fprintf(stderr, "bulkhead-worker: %s\n", status.error().message().c_str());
    return ipc::kExitUsage;
  }
  if (const Status status = stay_on(arguments.cores); !status.ok())
    spdlog::error("models[].cores: {}; it runs on any core", status.error().message());
  const AskedUser user = asked_user(arguments.user);
  no_cache |= arguments.describe;
  arguments.cache = no_cache ? std::string() : cache_folder(arguments.cache, user);
  if (user.id.has_value()) open_what_it_reads(arguments);
  const Result<Confined> confined =
      confine({arguments.model, arguments.chat_template, arguments.draft, arguments.cache,
               arguments.region, arguments.pid_namespace, user},
              settings.isolation);
  if (!confined.ok()) {
    spdlog::error(
        "the sandbox could not be put up: {}; --set isolation.sandbox=false serves without it",
        confined.error().message());
    return ipc::kExitInternal;
  }
  arguments.cache = confined->cache;
  if (arguments.describe) return describe_file(arguments);
  return serve(arguments, settings, confined->protections);
}

// Ends the process if a thread has thrown what nobody catches. Without memory the process can't go on, whichever thread
// lacks it: its requests go to a successor. Anything else is a bug, and dies as a crash.
[[noreturn]] void end_at_exception() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      constexpr std::string_view kWords = "bulkhead-worker: out of memory\n";
      (void)!::write(STDERR_FILENO, kWords.data(), kWords.size());
      std::_Exit(ipc::kExitInternal);
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "bulkhead-worker: nobody handles: %s\n", failure.what());
    } catch (...) {
    }
  }
  std::abort();
}

}  // namespace
}  // namespace bulkhead::worker

int main(int argc, char** argv) {
  // The daemon handles a Ctrl-C or a closed terminal: it drains, and this process then ends with it. A reader that
  // has gone shows as an error of the write.
  for (const int ignored : {SIGPIPE, SIGINT, SIGHUP})
    std::signal(ignored, SIG_IGN);
  // This process ends with the daemon even if it can't notice that the channel is closed (in a driver's call). The
  // signal comes when the thread that started this process ends, so the daemon starts workers from a thread that
  // lives as long as the daemon does.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The daemon starts this program by a descriptor's number, which lists of processes would show as its name.
  ::prctl(PR_SET_NAME, "bulkhead-worker");
  std::set_terminate(bulkhead::worker::end_at_exception);
  try {
    return bulkhead::worker::run(argc, argv);
  } catch (const std::exception& failure) {  // the process is probably out of memory
    std::fprintf(stderr, "bulkhead-worker: %s\n", failure.what());
    return bulkhead::ipc::kExitInternal;
  }
}
