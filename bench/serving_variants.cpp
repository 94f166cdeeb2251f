#include "bench/serving_variants.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <functional>
#include <span>

#include <nlohmann/json.hpp>

#include "bench/served_stream.hpp"
#include "config/config.hpp"
#include "gpu/device.hpp"
#include "ipc/channel.hpp"
#include "orchestrator/supervisor/process.hpp"
#include "worker/engine/engine.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::bench {
namespace {

using nlohmann::json;
using Tokens = std::vector<engine::TokenId>;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{120000};
constexpr milliseconds kLoadPatience{600000};

ipc::Submit request(const DecodePlan& plan, std::uint32_t vocabulary, std::uint32_t stream,
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

// Gives tokens of request `first_id + i` to trace i.
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
  // Handles all messages except tokens. Counts ends; returns false for a failure.
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

// ---- (a) the engine ----

class EngineAlone final : public EngineVariant {
 public:
  static Result<std::unique_ptr<EngineVariant>> load(const DecodePlan& plan,
                                                     config::Settings& settings) {
    auto self = std::unique_ptr<EngineAlone>(new EngineAlone(plan));
    gpu::DeviceOptions device;
    device.selector = plan.device;
    BULKHEAD_TRY(self->device_, gpu::Device::open(device));
    BULKHEAD_TRY(self->file_, model::GgufFile::open(plan.model));
    BULKHEAD_TRY(const auto graph, model::read_model(*self->file_));
    BULKHEAD_TRY(self->tokenizer_, model::Tokenizer::from_gguf(*self->file_));
    self->language_.tokenizer = self->tokenizer_.get();

    // There is room for every stream and no more, because many of these are loaded at once.
    const std::uint32_t length = plan.prompt + plan.tokens;
    if (length > graph.context) {
      return Error(
          ErrorCode::kInvalidArgument,
          "--prompt and --tokens exceed the model's context of " + std::to_string(graph.context));
    }
    settings.engine.max_batch = *std::max_element(plan.streams.begin(), plan.streams.end());
    const std::uint64_t positions =
        std::uint64_t{(length + 63) / 32 * 32} * settings.engine.max_batch + 32;
    settings.engine.kv_cache_mb = static_cast<std::uint32_t>(
        (forward::kv_bytes_per_token(graph, forward::kv_format(settings.engine.kv_type)) *
             positions >>
         20) +
        1);

    forward::TransformerOptions options;
    options.engine = settings.engine;
    options.gpu = settings.gpu_optimizations;
    options.context = length;
    options.wait_timeout_ms = 60000;
    BULKHEAD_TRY(self->executor_,
                 forward::make_transformer(*self->device_, *self->file_, graph, options));
    engine::EngineOptions engine;
    engine.scheduler = {settings.engine.max_batch, settings.engine.prefill_chunk,
                        settings.engine.prefix_cache, settings.engine.prefill_chunk_alone,
                        std::chrono::milliseconds(settings.engine.max_token_gap_ms)};
    self->engine_ = std::make_unique<engine::Engine>(
        *self->executor_, self->language_, engine,
        [self = self.get()](const ipc::FromWorker& message) { self->take(message); });
    return std::unique_ptr<EngineVariant>(std::move(self));
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

  std::uint32_t vocabulary() const override { return executor_->limits().vocabulary; }
  const std::string& device_name() const override { return device_->info().name; }
  const std::string& driver() const override { return device_->info().driver; }
  const std::vector<std::vector<std::size_t>>& text_bytes() const override { return text_bytes_; }

 private:
  explicit EngineAlone(const DecodePlan& plan) : plan_(plan) {}
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

  const DecodePlan& plan_;
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

// ---- (b) the worker and its channel ----

class WorkerAndChannel final : public Variant {
 public:
  static Result<std::unique_ptr<Variant>> start(const DecodePlan& plan,
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
    return std::unique_ptr<Variant>(std::move(self));
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
  WorkerAndChannel(const DecodePlan& plan, std::uint32_t vocabulary)
      : plan_(plan), vocabulary_(vocabulary) {}

  // Receives all records that are there; waits for at least one.
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

  const DecodePlan& plan_;
  std::uint32_t vocabulary_;
  orchestrator::Process process_;
  std::unique_ptr<ipc::Channel> channel_;
  std::uint64_t next_id_ = 1;
  Taker* taker_ = nullptr;
};

// ---- (c) over HTTP ----

class OverHttp final : public Variant {
 public:
  static Result<std::unique_ptr<Variant>> start(const DecodePlan& plan,
                                                const config::Settings& settings,
                                                const EngineVariant& engine) {
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
    return std::unique_ptr<Variant>(new OverHttp(plan, engine, std::move(daemon), worker));
  }

  Result<Run> run(std::uint32_t streams, bool check) override {
    std::vector<std::string> bodies;
    for (std::uint32_t i = 0; i < streams; ++i) {
      const ipc::Submit submit = request(plan_, engine_.vocabulary(), i, 0);
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
      // The amount of text that has come shows how many tokens have come.
      const std::vector<std::size_t>& released = engine_.text_bytes()[i];
      std::size_t bytes = 0;
      bool any = false;
      for (const Event& event : answers[i].events) {
        if (event.data == "[DONE]") break;
        const json chunk = json::parse(event.data, nullptr, false);
        if (!chunk.is_object() || chunk.value("choices", json::array()).empty()) {
          return Error(ErrorCode::kInternal, "an event is not a chunk: " + event.data);
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
  OverHttp(const DecodePlan& plan, const EngineVariant& engine, DaemonProcess daemon, pid_t worker)
      : plan_(plan), engine_(engine), daemon_(std::move(daemon)), worker_(worker) {}

  const DecodePlan& plan_;
  const EngineVariant& engine_;
  DaemonProcess daemon_;
  pid_t worker_;
};

}  // namespace

Result<std::unique_ptr<EngineVariant>> load_engine(const DecodePlan& plan,
                                                   config::Settings& settings) {
  return EngineAlone::load(plan, settings);
}
Result<std::unique_ptr<Variant>> start_worker(const DecodePlan& plan,
                                              const config::Settings& settings,
                                              std::uint32_t vocabulary) {
  return WorkerAndChannel::start(plan, settings, vocabulary);
}
Result<std::unique_ptr<Variant>> start_daemon(const DecodePlan& plan,
                                              const config::Settings& settings,
                                              const EngineVariant& engine) {
  return OverHttp::start(plan, settings, engine);
}

void pin_threads(pid_t pid, const cpu_set_t& cpus, bool but_main) {
  const std::string process = pid == 0 ? "self" : std::to_string(pid);
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + process + "/task", error)) {
    const std::string name = task.path().filename();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    if (but_main && thread == (pid == 0 ? ::getpid() : pid)) continue;
    ::sched_setaffinity(thread, sizeof cpus, &cpus);
  }
}

}  // namespace bulkhead::bench
