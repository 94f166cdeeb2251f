// bench-serving-overhead: what serving costs a token. The same requests are decoded
//
//   engine   by the engine alone, in this process: no channel, no other process
//   worker   by a bulkhead-worker, started and read through the daemon's own process and channel
//            code; this process counts the records' tokens and does nothing else with them
//   http     by a bulkheadd and its worker, streamed as server-sent events to a client in this
//            process
//
// over both transports, each token sent at once (flush_tokens 1) and four at a time. All of them
// stay loaded and take turns, so that what else the machine does meets them alike; an overhead is
// the median of the ratios within each turn.
//
// A stream's rate is its tokens after the first over the time since the first, taken where the
// tokens arrive: prompts and admission are not in it. The engine's tokens are checked against every
// other variant's.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/report.hpp"
#include "bench/served_stream.hpp"
#include "config/base/log.hpp"
#include "config/config.hpp"
#include "gpu/device.hpp"
#include "ipc/channel.hpp"
#include "orchestrator/supervisor/process.hpp"
#include "worker/engine/engine.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/model_config.hpp"
#include "worker/model/tokenizer.hpp"

namespace {

using namespace bulkhead;         // NOLINT: a program
using namespace bulkhead::bench;  // NOLINT
using nlohmann::json;
using Tokens = std::vector<engine::TokenId>;
using std::chrono::milliseconds;

constexpr std::uint32_t kBatchedTokens = 4;
constexpr milliseconds kPatience{120000};
constexpr milliseconds kLoadPatience{600000};

struct Plan {
  std::string model = "builtin", device = "auto", json_path;
  std::uint32_t tokens = 128, prompt = 16;
  int repeats = 7;
  std::vector<std::uint32_t> streams{1, 16};
  std::vector<std::string> transports{"shm", "stdio"};
  std::vector<std::uint32_t> flush{1, kBatchedTokens};
  std::uint32_t flush_interval_us = 1'000'000;
};

// When the tokens of one request came.
struct Trace {
  std::uint64_t begin_ns = 0;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> arrivals;  // when, tokens so far
  void add(std::uint64_t at_ns, std::size_t tokens) {
    if (!arrivals.empty() && arrivals.back().second >= tokens) return;
    arrivals.emplace_back(at_ns, static_cast<std::uint32_t>(tokens));
  }
};
using Traces = std::vector<Trace>;

// What a run gave: once with the tokens themselves (check), then only timed.
struct Run {
  Traces traces;
  std::vector<Tokens> tokens;
};

ipc::Submit request(const Plan& plan, std::uint32_t vocabulary, std::uint32_t stream,
                    std::uint64_t id) {
  ipc::Submit submit;
  submit.request = RequestId{id};
  Tokens prompt(plan.prompt);
  for (std::uint32_t i = 0; i < plan.prompt; ++i)
    prompt[i] = (stream * 7919 + i * 104729 + 17) % vocabulary;
  submit.prompt = std::move(prompt);
  submit.sampling.temperature = 0;
  submit.max_tokens = plan.tokens;
  submit.ignore_eos = true;
  return submit;
}

class Variant {
 public:
  virtual ~Variant() = default;
  virtual Result<Run> run(std::uint32_t streams, bool check) = 0;
  // The processes whose CPU time is told apart; 0 is this one.
  virtual std::vector<std::pair<const char*, pid_t>> processes() const = 0;
};

// Tells tokens of request `first_id + i` to trace i.
class Taker {
 public:
  Taker(std::uint32_t streams, std::uint64_t first_id, bool check) : first_id_(first_id) {
    run_.traces.resize(streams);
    for (Trace& trace : run_.traces)
      trace.arrivals.reserve(4096);
    if (check) run_.tokens.resize(streams);
  }
  void begin(std::uint64_t id) { run_.traces[id - first_id_].begin_ns = now_ns(); }
  void tokens(RequestId id, std::uint32_t first_index, std::span<const engine::TokenId> tokens) {
    const std::uint64_t i = id.value - first_id_;
    run_.traces[i].add(now_ns(), first_index + tokens.size());
    if (!run_.tokens.empty())
      run_.tokens[i].insert(run_.tokens[i].end(), tokens.begin(), tokens.end());
  }
  // Anything else than tokens. Counts ends; false for a failure.
  Status other(const ipc::FromWorker& message) {
    if (std::holds_alternative<ipc::Finished>(message)) ++finished_;
    if (const auto* failed = std::get_if<ipc::Failed>(&message)) {
      return Error(ErrorCode::kInternal, "a request failed: " + failed->message);
    }
    if (const auto* fatal = std::get_if<ipc::Fatal>(&message)) {
      return Error(ErrorCode::kInternal, "the worker failed: " + fatal->message);
    }
    return {};
  }
  bool done() const { return finished_ == run_.traces.size(); }
  Run take() { return std::move(run_); }

 private:
  std::uint64_t first_id_;
  std::size_t finished_ = 0;
  Run run_;
};

// ---- (a) ----

class EngineAlone final : public Variant {
 public:
  static Result<std::unique_ptr<EngineAlone>> load(const Plan& plan, config::Settings& settings) {
    auto self = std::unique_ptr<EngineAlone>(new EngineAlone(plan));
    gpu::DeviceOptions device;
    device.selector = plan.device;
    BULKHEAD_TRY(self->device_, gpu::Device::open(device));
    BULKHEAD_TRY(self->file_, model::GgufFile::open(plan.model));
    BULKHEAD_TRY(const auto config, model::read_model_config(*self->file_));
    BULKHEAD_TRY(self->tokenizer_, model::Tokenizer::from_gguf(*self->file_));
    self->language_.tokenizer = self->tokenizer_.get();

    // Room for every stream, and no more: many of these are loaded at once.
    const std::uint32_t length = plan.prompt + plan.tokens;
    if (length > config.context) {
      return Error(
          ErrorCode::kInvalidArgument,
          "--prompt and --tokens exceed the model's context of " + std::to_string(config.context));
    }
    settings.engine.max_batch = *std::max_element(plan.streams.begin(), plan.streams.end());
    const std::uint64_t positions =
        std::uint64_t{(length + 63) / 32 * 32} * settings.engine.max_batch + 32;
    settings.engine.kv_cache_mb = static_cast<std::uint32_t>(
        (forward::memory_need(*self->file_, config, settings.engine).kv_per_token * positions >>
         20) +
        1);

    forward::TransformerOptions options;
    options.engine = settings.engine;
    options.gpu = settings.gpu_optimizations;
    options.context = length;
    options.wait_timeout_ms = 60000;
    BULKHEAD_TRY(self->executor_,
                 forward::make_transformer(*self->device_, *self->file_, config, options));
    engine::EngineOptions engine;
    engine.scheduler = {settings.engine.max_batch, settings.engine.prefill_chunk,
                        settings.engine.prefix_cache};
    self->engine_ = std::make_unique<engine::Engine>(
        *self->executor_, self->language_, engine,
        [self = self.get()](const ipc::FromWorker& message) { self->take(message); });
    return self;
  }

  Result<Run> run(std::uint32_t streams, bool check) override {
    Taker taker(streams, next_id_, check);
    taker_ = &taker;
    failure_ = {};
    text_bytes_.assign(streams, {});
    first_id_ = next_id_;
    for (std::uint32_t i = 0; i < streams; ++i, ++next_id_) {
      taker.begin(next_id_);
      engine_->submit(request(plan_, vocabulary(), i, next_id_));
    }
    while (!taker.done() && failure_.ok()) {
      BULKHEAD_TRY(const bool ran, engine_->turn([] {}));
      if (!ran && engine_->outstanding() > 0 && !engine_->runnable()) {
        return Error(ErrorCode::kInternal, "the engine waits for nothing");
      }
    }
    BULKHEAD_RETURN_IF_ERROR(failure_);
    return taker.take();
  }
  std::vector<std::pair<const char*, pid_t>> processes() const override { return {{"engine", 0}}; }

  std::uint32_t vocabulary() const { return executor_->limits().vocabulary; }
  const std::string& device_name() const { return device_->info().name; }
  const std::string& driver() const { return device_->info().driver; }
  // After a run: bytes of text that the first tokens of each stream have released, token by token.
  const std::vector<std::vector<std::size_t>>& text_bytes() const { return text_bytes_; }

 private:
  explicit EngineAlone(const Plan& plan) : plan_(plan) {}
  void take(const ipc::FromWorker& message) {
    const auto* batch = std::get_if<ipc::TokenBatch>(&message);
    if (batch == nullptr) {
      if (failure_.ok()) failure_ = taker_->other(message);
      return;
    }
    for (const ipc::SequenceTokens& sequence : batch->sequences) {
      taker_->tokens(sequence.request, sequence.first_index, sequence.tokens);
      auto& bytes = text_bytes_[sequence.request.value - first_id_];
      bytes.push_back((bytes.empty() ? 0 : bytes.back()) + sequence.text.size());
    }
  }

  const Plan& plan_;
  std::unique_ptr<gpu::Device> device_;
  std::unique_ptr<model::GgufFile> file_;
  std::unique_ptr<model::Tokenizer> tokenizer_;
  engine::Language language_;
  std::unique_ptr<engine::Executor> executor_;
  std::unique_ptr<engine::Engine> engine_;
  std::uint64_t next_id_ = 1, first_id_ = 1;
  Taker* taker_ = nullptr;
  Status failure_;
  std::vector<std::vector<std::size_t>> text_bytes_;
};

// ---- (b) ----

class WorkerAndChannel final : public Variant {
 public:
  static Result<std::unique_ptr<WorkerAndChannel>> start(const Plan& plan,
                                                         const config::Settings& settings,
                                                         std::uint32_t vocabulary) {
    auto self = std::unique_ptr<WorkerAndChannel>(new WorkerAndChannel(plan, vocabulary));
    std::vector<std::string> arguments = {
        "--model", plan.model, "--device",  plan.device,
        "--name",  "bench",    "--context", std::to_string(plan.prompt + plan.tokens)};
    for (const std::string& assignment : config::worker_assignments(settings))
      arguments.insert(arguments.end(), {"--set", assignment});
    BULKHEAD_TRY(auto pair, ipc::make_channel_pair(settings.ipc));
    BULKHEAD_TRY(self->process_,
                 orchestrator::Process::start(program_beside("bulkhead-worker"), arguments, pair));
    self->channel_ = std::move(pair.daemon);
    bool ready = false;
    while (!ready) {
      BULKHEAD_RETURN_IF_ERROR(self->receive(kLoadPatience, [&](const ipc::FromWorker& message) {
        ready |= std::holds_alternative<ipc::Ready>(message);
        if (const auto* fatal = std::get_if<ipc::Fatal>(&message)) {
          return Status(Error(ErrorCode::kInternal, "the worker failed: " + fatal->message));
        }
        return Status();
      }));
    }
    return self;
  }

  Result<Run> run(std::uint32_t streams, bool check) override {
    Taker taker(streams, next_id_, check);
    for (std::uint32_t i = 0; i < streams; ++i, ++next_id_) {
      taker.begin(next_id_);
      BULKHEAD_RETURN_IF_ERROR(
          ipc::send(*channel_, ipc::ToWorker{request(plan_, vocabulary_, i, next_id_)}, kPatience));
    }
    taker_ = &taker;
    while (!taker.done()) {
      BULKHEAD_RETURN_IF_ERROR(
          receive(kPatience, [&](const ipc::FromWorker& message) { return taker.other(message); }));
    }
    taker_ = nullptr;
    return taker.take();
  }
  std::vector<std::pair<const char*, pid_t>> processes() const override {
    return {{"worker", process_.pid()}, {"reader", 0}};
  }

 private:
  WorkerAndChannel(const Plan& plan, std::uint32_t vocabulary)
      : plan_(plan), vocabulary_(vocabulary) {}

  // All records that are there; waits for one.
  Status receive(milliseconds patience,
                 const std::function<Status(const ipc::FromWorker&)>& other) {
    BULKHEAD_TRY(const bool readable,
                 ipc::wait_readable(*channel_, std::chrono::microseconds(0), patience));
    if (!readable) return Error(ErrorCode::kDeadlineExceeded, "the worker says nothing");
    for (;;) {
      BULKHEAD_TRY(const std::span<const std::byte> record, channel_->try_receive());
      if (record.empty()) return {};
      BULKHEAD_TRY(const bool tokens,
                   ipc::visit_tokens(record, [this](const ipc::SequenceTokensView& view) {
                     taker_->tokens(view.request, view.first_index, view.tokens);
                   }));
      if (!tokens) {
        BULKHEAD_TRY(const ipc::FromWorker message, ipc::decode_from_worker(record));
        BULKHEAD_RETURN_IF_ERROR(other(message));
      }
      channel_->release();
    }
  }

  const Plan& plan_;
  std::uint32_t vocabulary_;
  orchestrator::Process process_;
  std::unique_ptr<ipc::Channel> channel_;
  std::uint64_t next_id_ = 1;
  Taker* taker_ = nullptr;
};

// ---- (c) ----

class OverHttp final : public Variant {
 public:
  static Result<std::unique_ptr<OverHttp>> start(const Plan& plan, const config::Settings& settings,
                                                 std::uint32_t vocabulary,
                                                 const EngineAlone& engine) {
    std::vector<std::string> arguments;
    const auto set = [&](const std::string& assignment) {
      arguments.insert(arguments.end(), {"--set", assignment});
    };
    set("models.0.path=" + plan.model);
    set("models.0.device=" + plan.device);
    set("models.0.context=" + std::to_string(plan.prompt + plan.tokens));
    for (const std::string& assignment : config::worker_assignments(settings))
      set(assignment);
    BULKHEAD_TRY(auto daemon, DaemonProcess::start(arguments));
    BULKHEAD_TRY(const pid_t worker, daemon.worker_pid());
    return std::unique_ptr<OverHttp>(
        new OverHttp(plan, vocabulary, engine, std::move(daemon), worker));
  }

  Result<Run> run(std::uint32_t streams, bool check) override {
    std::vector<std::string> bodies;
    for (std::uint32_t i = 0; i < streams; ++i) {
      const ipc::Submit submit = request(plan_, vocabulary_, i, 0);
      bodies.push_back(json{
          {"prompt", std::get<Tokens>(submit.prompt)},
          {"max_tokens", submit.max_tokens},
          {"temperature", 0},
          {"ignore_eos", true},
          {"stream", true},
          {"return_token_ids",
           check}}.dump());
    }
    BULKHEAD_TRY(const std::vector<Stream> answers, stream_completions(daemon_.port(), bodies));
    Run run;
    run.traces.resize(streams);
    if (check) run.tokens.resize(streams);
    for (std::uint32_t i = 0; i < streams; ++i) {
      Trace& trace = run.traces[i];
      trace.begin_ns = answers[i].sent_ns;
      // How many tokens have come shows in how much of their text has.
      const std::vector<std::size_t>& released = engine_.text_bytes()[i];
      std::size_t bytes = 0;
      bool any = false;
      for (const Event& event : answers[i].events) {
        if (event.data == "[DONE]") break;
        const json chunk = json::parse(event.data, nullptr, false);
        if (!chunk.is_object() || chunk.value("choices", json::array()).empty()) {
          return Error(ErrorCode::kInternal, "an event is no chunk: " + event.data);
        }
        const json& choice = chunk["choices"][0];
        const std::string text = choice.value("text", "");
        bytes += text.size();
        any |= !text.empty();
        const auto known = std::upper_bound(released.begin(), released.end(), bytes);
        const bool last = choice["finish_reason"].is_string();
        const auto tokens = static_cast<std::size_t>(known - released.begin());
        if (any) trace.add(event.at_ns, last ? released.size() : std::max<std::size_t>(tokens, 1));
        if (check) {
          for (const auto& id : choice.value("token_ids", json::array()))
            run.tokens[i].push_back(id.get<engine::TokenId>());
        }
      }
    }
    return run;
  }
  std::vector<std::pair<const char*, pid_t>> processes() const override {
    return {{"worker", worker_}, {"daemon", daemon_.pid()}, {"client", 0}};
  }

 private:
  OverHttp(const Plan& plan, std::uint32_t vocabulary, const EngineAlone& engine,
           DaemonProcess daemon, pid_t worker)
      : plan_(plan),
        vocabulary_(vocabulary),
        engine_(engine),
        daemon_(std::move(daemon)),
        worker_(worker) {}

  const Plan& plan_;
  std::uint32_t vocabulary_;
  const EngineAlone& engine_;
  DaemonProcess daemon_;
  pid_t worker_;
};

// ---- figures ----

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}
double share(std::vector<double>& values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

// The runs of one variant with one number of streams.
struct Series {
  Series(std::string the_name, std::string the_kind, std::string the_transport,
         std::uint32_t tokens)
      : name(std::move(the_name)),
        kind(std::move(the_kind)),
        transport(std::move(the_transport)),
        flush(tokens) {}

  std::string name, kind, transport;
  std::uint32_t flush = 0;
  std::vector<double> decode_tokens_per_s, all_tokens_per_s;  // of each repeat
  std::vector<double> ttft_ms, inter_token_ms;                // of all repeats
  std::vector<std::pair<std::string, std::vector<double>>> cpu_us_per_token;

  void add(const Traces& traces, std::uint32_t tokens) {
    double rate = 0;
    std::uint64_t begin = UINT64_MAX, end = 0;
    for (const Trace& trace : traces) {
      const auto& arrivals = trace.arrivals;
      const double seconds =
          static_cast<double>(arrivals.back().first - arrivals.front().first) / 1e9;
      rate += (arrivals.back().second - arrivals.front().second) / seconds;
      begin = std::min(begin, trace.begin_ns);
      end = std::max(end, arrivals.back().first);
      ttft_ms.push_back(static_cast<double>(arrivals.front().first - trace.begin_ns) / 1e6);
      for (std::size_t i = 1; i < arrivals.size(); ++i) {
        const std::uint32_t count = arrivals[i].second - arrivals[i - 1].second;
        const double gap =
            static_cast<double>(arrivals[i].first - arrivals[i - 1].first) / 1e6 / count;
        inter_token_ms.insert(inter_token_ms.end(), count, gap);
      }
    }
    decode_tokens_per_s.push_back(rate);
    all_tokens_per_s.push_back(static_cast<double>(traces.size()) * tokens * 1e9 /
                               static_cast<double>(end - begin));
  }
};

// Of each repeat's rate, how much less it is than the engine's in the same repeat, in percent.
std::vector<double> overheads(const Series& series, const Series& engine) {
  std::vector<double> all;
  for (std::size_t i = 0; i < series.decode_tokens_per_s.size(); ++i)
    all.push_back(100 * (1 - series.decode_tokens_per_s[i] / engine.decode_tokens_per_s[i]));
  return all;
}

json to_json(const Series& series, const Series& engine, std::uint32_t streams) {
  std::vector<double> overhead = overheads(series, engine);
  std::vector<double> ttft = series.ttft_ms, gaps = series.inter_token_ms;
  json out = {{"name", series.name},
              {"kind", series.kind},
              {"streams", streams},
              {"decode_tokens_per_s", median(series.decode_tokens_per_s)},
              {"decode_tokens_per_s_repeats", series.decode_tokens_per_s},
              {"with_prefill_tokens_per_s", median(series.all_tokens_per_s)},
              {"overhead_percent", median(overhead)},
              {"overhead_percent_repeats", overhead},
              {"ttft_p50_ms", share(ttft, 0.5)},
              {"ttft_p99_ms", share(ttft, 0.99)},
              {"inter_token_p50_ms", share(gaps, 0.5)},
              {"inter_token_p99_ms", share(gaps, 0.99)}};
  if (!series.transport.empty()) {
    out["transport"] = series.transport;
    out["flush_tokens"] = series.flush;
  }
  for (const auto& [process, values] : series.cpu_us_per_token)
    out["cpu_us_per_token"][process] = median(values);
  return out;
}

void print(const json& line) {
  std::vector<double> repeats = line["overhead_percent_repeats"];
  std::sort(repeats.begin(), repeats.end());
  std::printf("%-16s %9.1f   %6.1f %% (%6.1f to %6.1f)  %8.2f %8.2f  %7.3f %8.3f  ",
              line["name"].get<std::string>().c_str(), line["decode_tokens_per_s"].get<double>(),
              line["overhead_percent"].get<double>(), repeats.front(), repeats.back(),
              line["ttft_p50_ms"].get<double>(), line["ttft_p99_ms"].get<double>(),
              line["inter_token_p50_ms"].get<double>(), line["inter_token_p99_ms"].get<double>());
  for (const auto& [process, us] : line["cpu_us_per_token"].items())
    std::printf(" %s %.1f", process.c_str(), us.get<double>());
  std::printf("\n");
}

Status check_tokens(const std::string& name, const std::vector<Tokens>& expected,
                    const std::vector<Tokens>& got) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (got.at(i) == expected[i]) continue;
    return Error(ErrorCode::kInternal, name + ": stream " + std::to_string(i) +
                                           " has other tokens than the engine alone gave (" +
                                           std::to_string(got[i].size()) + " of " +
                                           std::to_string(expected[i].size()) + ")");
  }
  return {};
}

Status run(const Plan& plan) {
  config::Settings settings;
  settings.log.level = "warn";
  settings.engine.prefix_cache = false;  // the prompts are the same in every turn
  BULKHEAD_TRY(const auto engine, EngineAlone::load(plan, settings));
  std::printf("%s (%s), %s: %u tokens after prompts of %u, %d repeats\n",
              engine->device_name().c_str(), engine->driver().c_str(), plan.model.c_str(),
              plan.tokens, plan.prompt, plan.repeats);
  std::fflush(stdout);

  struct Entry {
    std::unique_ptr<Variant> made;  // empty: the engine
    Variant* variant = nullptr;
    Series series;
  };
  std::vector<Entry> entries;
  entries.push_back({nullptr, engine.get(), Series("engine", "engine", "", 0)});
  for (const std::string& transport : plan.transports) {
    for (const std::uint32_t flush : plan.flush) {
      settings.ipc.transport =
          transport == "shm" ? config::Transport::kShm : config::Transport::kStdio;
      settings.ipc.flush_tokens = flush;
      // Only where tokens are to wait for each other; else one that did would blur the comparison.
      settings.ipc.flush_interval_us =
          flush > 1 ? plan.flush_interval_us : config::IpcSettings{}.flush_interval_us;
      BULKHEAD_TRY(auto worker, WorkerAndChannel::start(plan, settings, engine->vocabulary()));
      BULKHEAD_TRY(auto http, OverHttp::start(plan, settings, engine->vocabulary(), *engine));
      const std::string suffix = " " + transport + " " + std::to_string(flush);
      const auto add = [&](std::unique_ptr<Variant> made, const char* kind) {
        Variant* variant = made.get();
        entries.push_back(
            {std::move(made), variant, Series(kind + suffix, kind, transport, flush)});
      };
      add(std::move(worker), "worker");
      add(std::move(http), "http");
    }
  }

  double load[3] = {};
  ::getloadavg(load, 3);
  json report{
      {"benchmark", "serving-overhead"}, {"device", engine->device_name()},
      {"driver", engine->driver()},      {"model", plan.model},
      {"tokens", plan.tokens},           {"prompt", plan.prompt},
      {"repeats", plan.repeats},         {"cpus_online", ::sysconf(_SC_NPROCESSORS_ONLN)},
      {"load_average_before", load[0]},  {"batched_flush_interval_us", plan.flush_interval_us},
      {"results", json::array()}};
  for (const std::uint32_t streams : plan.streams) {
    std::vector<Series> series;
    for (const Entry& entry : entries)
      series.push_back(entry.series);
    // Warms up, and shows that all of them decode the same.
    std::vector<Tokens> expected;
    for (const Entry& entry : entries) {
      BULKHEAD_TRY(const Run checked, entry.variant->run(streams, true));
      if (expected.empty()) expected = checked.tokens;
      BULKHEAD_RETURN_IF_ERROR(check_tokens(entry.series.name, expected, checked.tokens));
    }
    for (int repeat = 0; repeat < plan.repeats; ++repeat) {
      for (std::size_t turn = 0; turn < entries.size(); ++turn) {
        // Another begins each time: nobody is always the first after a pause.
        const std::size_t i = (turn + static_cast<std::size_t>(repeat)) % entries.size();
        const auto processes = entries[i].variant->processes();
        std::vector<std::uint64_t> before;
        for (const auto& [name, pid] : processes)
          before.push_back(cpu_ns(pid));
        BULKHEAD_TRY(const Run timed, entries[i].variant->run(streams, false));
        series[i].add(timed.traces, plan.tokens);
        auto& cpu = series[i].cpu_us_per_token;
        cpu.resize(processes.size());
        for (std::size_t p = 0; p < processes.size(); ++p) {
          cpu[p].first = processes[p].first;
          cpu[p].second.push_back(static_cast<double>(cpu_ns(processes[p].second) - before[p]) /
                                  1e3 / (double{1} * streams * plan.tokens));
        }
      }
    }
    std::printf(
        "\n%u streams      decode tokens/s  overhead (least to most)   TTFT p50      p99 ms  "
        "token p50      p99 ms   CPU us a token\n",
        streams);
    for (const Series& each : series) {
      const json line = to_json(each, series.front(), streams);
      print(line);
      report["results"].push_back(line);
    }
    std::fflush(stdout);
  }
  return bench::write_report(plan.json_path, report);
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  CLI::App app{
      "What the channel and HTTP take of the bare engine's speed: the same decode by the engine "
      "alone, by a worker\nthrough its channel, and streamed over HTTP"};
  app.add_option("--model", plan.model, "GGUF file, or \"builtin\"")->capture_default_str();
  app.add_option("--device", plan.device, "auto, cpu, an index or part of a device's name")
      ->capture_default_str();
  app.add_option("--tokens", plan.tokens, "generated tokens of each stream")
      ->check(CLI::Range(8, 1 << 20))
      ->capture_default_str();
  app.add_option("--prompt", plan.prompt, "prompt tokens of each stream")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--streams", plan.streams, "streams side by side, one comparison for each number")
      ->delimiter(',')
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--repeats", plan.repeats, "turns of all variants, taken one after another")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--transports", plan.transports, "shm, stdio")
      ->delimiter(',')
      ->check(CLI::IsMember({"shm", "stdio"}))
      ->capture_default_str();
  app.add_option("--flush-tokens", plan.flush, "ipc.flush_tokens, one comparison for each number")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--flush-interval-us", plan.flush_interval_us,
                 "ipc.flush_interval_us where tokens wait for each other")
      ->capture_default_str();
  app.add_option("--json", plan.json_path, "write the figures there, too");
  CLI11_PARSE(app, argc, argv);
  Status status = log::init("warn", "text", "bench-serving-overhead");
  if (status.ok()) {
    try {
      status = run(plan);
    } catch (const std::exception& error) {
      status = Error(ErrorCode::kInternal, error.what());
    }
  }
  if (!status.ok()) {
    std::fprintf(stderr, "bench-serving-overhead: %s\n", status.error().message().c_str());
    return 1;
  }
  return 0;
}
