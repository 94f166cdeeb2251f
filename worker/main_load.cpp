#include "worker/main_load.hpp"

#include <filesystem>
#include <future>
#include <utility>

#include "config/base/log.hpp"
#include "worker/forward/split_transformer.hpp"
#include "worker/main_draft.hpp"
#include "worker/model/answer/derived_family.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/graph_encoder.hpp"
#include "worker/model/ranking.hpp"
#include "worker/model/template_file.hpp"
#include "worker/model/tokenizer_check.hpp"

namespace bulkhead::worker {
namespace {

constexpr std::uint32_t kLoadingPatience = 10;
constexpr std::chrono::milliseconds kProgressInterval{100};
constexpr std::uint64_t kTraceBytes = 64 << 20;

// Writes the trace to a file of that name in the cache folder, the only folder that a worker may write to. A
// worker that can't write it serves all the same.
void start_trace(const Arguments& arguments, const config::Settings& settings,
                 gpu::Device& device) {
  if (arguments.cache.empty()) {
    spdlog::warn("gpu_optimizations.trace_file: there is no cache folder to write it to");
    return;
  }
  const std::string path = (std::filesystem::path(arguments.cache) /
                            (arguments.name + (arguments.name.empty() ? "" : "-") +
                             settings.gpu_optimizations.trace_file))
                               .string();
  if (const Status status = device.activity().trace_to(path, kTraceBytes); !status.ok()) {
    spdlog::warn("gpu_optimizations.trace_file: {}", status.error().message());
    return;
  }
  spdlog::info("a timeline of device and host is written to {}", path);
}

// Opens the worker's device, or all devices among which a split model's layers are divided.
Status open_devices(const Arguments& arguments, Loaded& loaded) {
  std::string left = arguments.device;
  for (bool more = true; more;) {
    gpu::DeviceOptions device;
    const std::size_t end = arguments.split == "layers" ? left.find(',') : std::string::npos;
    device.selector = left.substr(0, end);
    device.cache_folder = arguments.cache;
    BULKHEAD_TRY(auto opened, gpu::Device::open(device));
    if (loaded.device == nullptr)
      loaded.device = std::move(opened);
    else
      loaded.more_devices.push_back(std::move(opened));
    more = end != std::string::npos;
    if (more) left.erase(0, end + 1);
  }
  return {};
}

Result<std::unique_ptr<forward::Transformer>> make_executor(
    Loaded& loaded, const forward::TransformerOptions& options) {
  if (loaded.more_devices.empty())
    return forward::make_transformer(*loaded.device, *loaded.file, loaded.graph, options);
  std::vector<gpu::Device*> devices{loaded.device.get()};
  for (const auto& device : loaded.more_devices)
    devices.push_back(device.get());
  return forward::make_split_transformer(devices, *loaded.file, loaded.graph, options);
}

// Loads the draft model, if the settings name one. If that fails, a successor serves without it, because streams
// wait, and no token depends on it.
Status load_draft_model(const Arguments& arguments, const forward::TransformerOptions& options,
                        bool successor, Loaded& loaded) {
  if (arguments.draft.empty()) return {};
  if (options.engine.speculation == config::Speculation::kOff) {
    spdlog::warn("models[].draft: nothing is guessed while engine.speculation is off");
    return {};
  }
  auto draft = load_draft(arguments.draft, *loaded.device, *loaded.file, loaded.graph, options);
  if (draft.ok()) {
    loaded.draft = *std::move(draft);
    return {};
  }
  const ErrorCode code = draft.error().code();
  const bool broken = code == ErrorCode::kDeviceLost || code == ErrorCode::kDeadlineExceeded;
  if (!successor || broken) return draft.error();
  spdlog::warn("no draft model: {}", draft.error().message());
  return {};
}

// Lets engine.pooling decide what stands for a text; auto leaves that to the file. A head for ranking reads what the
// file says, whatever the setting.
void choose_pooling(config::Pooling pooling, const model::GgufFile& file,
                    model::ModelGraph& encoder) {
  if (has_rank_head(file)) return;
  switch (pooling) {
    case config::Pooling::kAuto:
      return;
    case config::Pooling::kMean:
      return set_pooling(encoder, model::TextPooling::kMean);
    case config::Pooling::kLast:
      return set_pooling(encoder, model::TextPooling::kLast);
  }
}

}  // namespace

void ProgressReporter::operator()(const std::string& stage, std::uint64_t done,
                                  std::uint64_t total) {
  channel_.beat(++beats_);
  const auto now = std::chrono::steady_clock::now();
  if (stage == stage_ && done != total && now - sent_ < kProgressInterval) return;
  stage_ = stage;
  sent_ = now;
  outbox_.pump();
  if (!outbox_.congested()) outbox_.send(ipc::Progress{stage, done, total});
}

Status load(const Arguments& arguments, const config::Settings& settings,
            ProgressReporter& progress, MainVault& vault, Loaded& loaded) {
  progress("reading the model file", 0, 1);
  BULKHEAD_TRY(loaded.file, vault.open_model(arguments.model));
  BULKHEAD_TRY(loaded.graph, model::read_model(*loaded.file));
  if (is_encoder(loaded.graph)) choose_pooling(settings.engine.pooling, *loaded.file, loaded.graph);
  // The vocabulary is read while the weights are loaded, which may take minutes. This check comes first, so that a
  // tokenizer that is not supported is refused at once.
  BULKHEAD_RETURN_IF_ERROR(model::check_tokenizer(*loaded.file));
  progress("reading the model file", 1, 1);

  progress("opening the device", 0, 1);
  BULKHEAD_RETURN_IF_ERROR(open_devices(arguments, loaded));
  progress("opening the device", 1, 1);
  if (!settings.gpu_optimizations.trace_file.empty())
    start_trace(arguments, settings, *loaded.device);
  // The tokenizer is read beside the weights, because a large vocabulary takes a tenth of a second and more.
  // The thread starts once the device is open, because opening it sets environment variables.
  auto reading = std::async(std::launch::async,
                            [&loaded] { return model::Tokenizer::from_gguf(*loaded.file); });
  const auto take_tokenizer = [&]() -> Status {
    BULKHEAD_TRY(loaded.tokenizer, reading.get());
    loaded.language.tokenizer = loaded.tokenizer.get();
    if (arguments.chat_template.empty()) {
      loaded.language.chat = model::load_chat(*loaded.file);
    } else {
      BULKHEAD_TRY(loaded.language.chat,
                   model::load_asked_chat(*loaded.file, arguments.chat_template));
    }
    const bool asked = !arguments.chat_template.empty() && loaded.language.chat.ok();
    loaded.language.ranker = model::load_ranker(
        *loaded.file, *loaded.tokenizer, loaded.graph,
        asked ? std::string_view(loaded.language.chat->source()) : std::string_view());
    const Result<model::Ranker>& ranker = loaded.language.ranker;
    if (!ranker.ok() && ranker.error().code() == ErrorCode::kCorrupt) return ranker.error();
    if (loaded.language.chat.ok())
      loaded.language.family = &model::answer::family_of_chat(*loaded.language.chat);
    return {};
  };

  forward::TransformerOptions options;
  options.engine = settings.engine;
  options.gpu = settings.gpu_optimizations;
  options.context = arguments.context;
  options.beside_others = arguments.beside_others;
  options.cache_folder = arguments.cache;
  options.exportable = vault.wanted();
  options.predecessor = vault.predecessor();
  const std::uint32_t own_timeout = settings.gpu_optimizations.command_buffer_ring.timeout_ms;
  options.wait_timeout_ms = config::device_wait_ms(settings);
  // A CPU device compiles kernels inside its first step and shares the cores with everybody, so the worker waits
  // longer for that step. The daemon waits just as long while a model loads, and notices a later hang by the
  // heartbeat.
  if (own_timeout == 0 && loaded.device->info().kind == gpu::DeviceKind::kCpu) {
    options.wait_timeout_ms *= kLoadingPatience;
  }
  options.progress = [&progress](const std::string& stage, std::uint64_t done,
                                 std::uint64_t total) { progress(stage, done, total); };
  // The draft model is loaded before the model, so that the model's KV pages take only the memory that it leaves.
  const Status drafting = load_draft_model(arguments, options, vault.given(), loaded);
  if (!drafting.ok()) {
    BULKHEAD_RETURN_IF_ERROR(take_tokenizer());
    return drafting;
  }
  auto executor = make_executor(loaded, options);
  // If both the tokenizer and the weights are broken, the error is the tokenizer's.
  BULKHEAD_RETURN_IF_ERROR(take_tokenizer());
  BULKHEAD_TRY(loaded.executor, std::move(executor));
  return {};
}

}  // namespace bulkhead::worker
