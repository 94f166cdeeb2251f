#include "worker/forward/transformer.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "config/base/clean_text.hpp"
#include "config/base/fnv1a.hpp"
#include "config/base/log.hpp"
#include "gpu/optimizations.hpp"
#include "gpu/submission.hpp"
#include "worker/forward/cache_size.hpp"
#include "worker/forward/chain.hpp"
#include "worker/forward/kernel_compiler.hpp"
#include "worker/forward/kv_memory.hpp"
#include "worker/forward/load_figures.hpp"
#include "worker/forward/mapping.hpp"
#include "worker/forward/memory_sums.hpp"
#include "worker/forward/step_program.hpp"
#include "worker/forward/step_runner.hpp"
#include "worker/forward/warm_up.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;
using namespace std::chrono_literals;

namespace {

// Raised when kernels keep their code but the order of a step's additions changes.
constexpr int kNumericsVersion = 5;

class LoadedTransformer final : public Transformer {
 public:
  static Result<std::unique_ptr<Transformer>> create(gpu::Device& device,
                                                     const model::GgufFile& file,
                                                     const model::ModelGraph& graph,
                                                     const TransformerOptions& options) {
    std::unique_ptr<LoadedTransformer> self(new LoadedTransformer);
    const auto start = Clock::now();
    BULKHEAD_RETURN_IF_ERROR(self->load(device, file, graph, options));
    const auto loaded = Clock::now();
    WarmUp warm_up(self->context_, self->runner_, options);
    BULKHEAD_RETURN_IF_ERROR(warm_up.run_every_shape(self->limits_, self->load_times_));
    if (self->tuning_) {
      BULKHEAD_RETURN_IF_ERROR(warm_up.tune(*self->tuning_, self->limits_, self->load_times_));
    }
    if (options.broken_link != 0) self->break_chain(options.broken_link);
    self->load_times_.warm_up_ns = nanoseconds_since(loaded);
    self->parts_.free_memory->ask();  // for the first report, what the model leaves free
    self->load_times_.total_ns = nanoseconds_since(start);
    log_load_times(self->load_times_, self->context_.weights.bytes);
    return std::unique_ptr<Transformer>(std::move(self));
  }

  // The device may still run work that uses the cache, the weights and the recordings, which are destroyed after
  // this. If the device hangs, nothing of it is freed.
  ~LoadedTransformer() override { parts_.drain(); }

  const engine::ExecutorLimits& limits() const override { return limits_; }

  Status reserve_logits(std::uint32_t outputs) override { return runner_.reserve_logits(outputs); }
  Status reserve_adjustments(std::uint64_t edits) override {
    return runner_.reserve_adjustments(edits);
  }
  bool grow(std::uint32_t slab) override {
    return kv_.grow(slab, memory_kind(), *parts_.free_memory);
  }
  void shrink(std::uint32_t slab) override { kv_.shrink(slab); }
  std::vector<std::uint32_t> present_slabs() const override { return kv_.present_slabs(); }
  Result<std::vector<ExportedSlab>> export_slab(std::uint32_t slab) const override {
    if (!exportable_) return Error(ErrorCode::kUnsupported, "it can't be shared");
    return kv_.export_slab(slab);
  }
  Status submit(const engine::Step& step) override { return runner_.submit(step); }
  Status choose(std::span<const engine::Adjustment> adjustments) override {
    return runner_.choose(adjustments);
  }
  Status flush() override { return runner_.flush(); }
  Result<std::span<const engine::ColumnOutput>> wait() override { return runner_.wait(); }
  bool lost() const override { return runner_.lost(); }

  std::span<float> brought_rows() override { return runner_.brought_rows(); }
  ComputedRows computed_rows() override {
    return {runner_.computed_rows(), stride_of(context_, model::kStream)};
  }

  Status start_sums(std::span<const engine::PageIndex> pages, std::uint64_t weight_bytes) override {
    return sums_->start(pages, weight_bytes);
  }
  Result<std::span<const engine::PageSum>> finish_sums() override { return sums_->finish(); }

  Status change_bit(engine::PageIndex page) override {
    return sums_->change_bit(page, *parts_.blit_queue);
  }

  std::string device_name() const override { return context_.device->info().name; }
  std::string numerics_id() const override { return numerics_id_; }
  std::uint64_t weight_bytes() const override { return context_.weights.bytes; }
  std::uint64_t weight_bytes_read() const override { return context_.weights.bytes_per_step; }

  Result<ExportedMemory> export_memory() const override {
    if (!exportable_) {
      return Error(ErrorCode::kUnsupported,
                   context_.device->info().name + " can't share memory between processes");
    }
    ExportedMemory exported;
    exported.layout = memory_layout_;
    exported.checksums = checksums_;
    for (const auto* blocks : {&context_.weights.blocks, &context_.kv_blocks}) {
      for (const gpu::Buffer& block : *blocks) {
        BULKHEAD_TRY(UniqueFd fd, context_.device->export_memory(block));
        exported.blocks.push_back(std::move(fd));
      }
    }
    return exported;
  }
  ImportTimes import_times() const override { return import_times_; }
  Status check_weights_again() override {
    const auto begin = Clock::now();
    if (summing_ == nullptr)
      return Error(ErrorCode::kInternal, "this executor has imported no weights");
    BULKHEAD_TRY(const std::vector<k::Checksum> sums, summing_->run());
    import_times_.check_ns = nanoseconds_since(begin);
    return sums == checksums_ ? Status() : not_as_expected("the weights' checksums differ");
  }

  // A CPU may compute for minutes at a whole text, which can't be cut into shorter steps. After kLongestWait the
  // device counts as hung: wait() says so.
  Result<bool> ended(std::uint32_t wait_ms) override {
    constexpr std::chrono::milliseconds kLongestWait = 15min;
    const bool on_cpu = context_.device->info().kind == gpu::DeviceKind::kCpu;
    if (!on_cpu || !limits_.both_ways || waited_ > kLongestWait) return true;
    BULKHEAD_TRY(const bool finished, runner_.oldest_finished(wait_ms));
    waited_ = finished ? 0ms : waited_ + std::chrono::milliseconds(wait_ms);
    return finished;
  }

  std::vector<FigureValue> counters() const override {
    std::vector<FigureValue> all = gpu::figures(parts_, *context_.device);
    const auto add = [&all](FigureName name, auto value) {
      all.emplace_back(name, static_cast<double>(value));
    };
    const auto seconds = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e9; };
    add("steps", runner_.steps());
    add("kv_bytes", kv_.bytes_at_first() + kv_.bytes_of_slabs());
    add("kv_bytes_at_first", kv_.bytes_at_first());
    add("kv_bytes_per_token", kv_per_token_);
    add("max_batch", limits_.max_sequences);
    add("steps_computed_again", runner_.computed_again());
    add("steps_in_flight", limits_.steps_in_flight);
    add("plan_seconds", seconds(runner_.plan_ns()));
    add("command_buffers_begun", gpu::commands_begun());
    add("weights_checked_total", sums_->passes());
    add_load_counters(load_times_, all);
    add("vault_import_seconds", seconds(import_times_.import_ns));
    add("vault_check_seconds", seconds(import_times_.check_ns));
    all.insert(all.end(), kernel_times_.begin(), kernel_times_.end());
    return all;
  }

  std::vector<Optimization> optimizations() const override {
    std::vector<Optimization> list;
    for (const auto& part : parts_.reports)
      list.push_back({part.name, part.active, part.reason});
    return list;
  }

  Status profile() override {
    const engine::PageIndex page = hidden_page(limits_);
    const std::span<const engine::PageIndex> sequence(&page, 1);
    const engine::Column column{
        0, 0, 0, context_.graph.makes_logits ? engine::Output::kGreedy : engine::Output::kNone};
    const std::uint64_t steps = runner_.steps();
    BULKHEAD_RETURN_IF_ERROR(
        runner_.start({std::span(&column, 1), std::span(&sequence, 1)}, runner_.shapes().front()));
    BULKHEAD_RETURN_IF_ERROR(runner_.wait());
    const auto times = runner_.profile();
    runner_.set_steps(steps);
    if (!times.ok()) {
      if (times.error().code() == ErrorCode::kUnsupported) return {};  // no timestamps
      return times.error();
    }
    kernel_times_ = kernel_counters(*times);
    kernel_times_.push_back({"kernel_profiles", static_cast<double>(++profiles_)});
    return {};
  }

  Result<std::vector<gpu::KernelTime>> profile_step(const engine::Step& step) override {
    BULKHEAD_RETURN_IF_ERROR(runner_.submit(step));
    BULKHEAD_RETURN_IF_ERROR(runner_.wait());
    return runner_.profile();
  }

 private:
  LoadedTransformer() = default;

  // Says whether one step is computed while the host reads the tokens of the step before and plans the next. Without
  // the ring a command buffer is recorded only when the step before has ended; without the blit queue the host waits
  // for each transfer; without the pool a step's memory is freed with the step. The stages of a split model run ahead
  // of each other instead: each has only one set of rows of the stream.
  bool runs_ahead() const {
    return is_whole(context_.graph) && parts_.command_ring->enabled() &&
           parts_.memory_pool->enabled() && parts_.blit_queue->enabled();
  }

  Status load(gpu::Device& device, const model::GgufFile& file, const model::ModelGraph& graph,
              const TransformerOptions& options) {
    context_.device = &device;
    description_sum_ = file.description_sum();
    context_.graph = graph;
    context_.mapping = mapping_of(device, options);
    context_.kv_format = kv_format(options.engine.kv_type);
    context_.windows = kv_windows(graph);
    BULKHEAD_TRY(context_.plan, plan_model(graph, file, context_.mapping, context_.kv_format));
    const bool cpu = device.info().kind == gpu::DeviceKind::kCpu;
    limits_.max_columns = widest_step(graph, options.engine, cpu);
    limits_.both_ways = is_encoder(graph);
    limits_.max_outputs = graph.makes_logits ? most_outputs(options.engine) : 0;
    limits_.max_sequences = context_.most_runs = options.engine.max_batch;
    limits_.states = state_slots(graph, options.engine);
    if (options.shared && limits_.states > 0) limits_.states = options.shared->states;
    limits_.max_drafts =
        options.shared ? options.shared->drafts : most_drafts(graph, options.engine);
    std::vector<StepShape> shapes =
        step_shapes(limits_.max_columns, widest_mixed_step(options.engine), limits_.max_outputs,
                    options.gpu.command_buffer_ring.ring_size);
    for (const StepShape& shape : shapes)
      limits_.widths.push_back(shape.columns);
    BULKHEAD_RETURN_IF_ERROR(size_cache(options, shapes));
    BULKHEAD_TRY(parts_, gpu::create_optimizations(device, options.gpu, options.wait_timeout_ms));
    context_.slots = limits_.steps_in_flight =
        runs_ahead() ? options.gpu.command_buffer_ring.steps_in_flight : 1;
    exportable_ = options.exportable && device.info().shares_memory;
    BULKHEAD_TRY(const std::unique_ptr<WeightUpload> loading, start_weights(file, options));
    // The whole plan is known: what a predecessor exported must be the same.
    describe_memory(*loading, options);
    if (options.predecessor != nullptr)
      BULKHEAD_RETURN_IF_ERROR(compare_layouts(memory_layout_, *options.predecessor));
    // The kernels are compiled, and the KV pages allocated, while the weights are on their way.
    // A chained step's attention loads keys of earlier steps while it waits for the step's own. An encoder has no
    // earlier steps, and must not load its own keys before they are written.
    // If a chain fails, a model with states loses the step. A stage of a split model must not lose one, because the
    // next stage would go on with what the lost step left.
    const bool may_lose = !graph.states.empty() && options.shared.has_value();
    const bool chains =
        !options.gpu.command_buffer_ring.mark_kernels && !limits_.both_ways && !may_lose;
    want_chain(context_, chains ? options.gpu.chained_kernels : config::ChainedKernels::kOff);
    BULKHEAD_TRY(std::vector<gpu::KernelSpec> kernels, kernels_to_compile(shapes, options));
    KernelCompiler compiler(device, std::move(kernels));
    const auto upload_progress = [&options](std::uint64_t done, std::uint64_t total) {
      if (options.progress) options.progress("weights", done, total);
    };
    BULKHEAD_RETURN_IF_ERROR(loading->place(upload_progress));
    BULKHEAD_RETURN_IF_ERROR(place_kv(options));
    BULKHEAD_RETURN_IF_ERROR(runner_.prepare(std::move(shapes)));
    BULKHEAD_RETURN_IF_ERROR(loading->finish(upload_progress));
    BULKHEAD_RETURN_IF_ERROR(check_weights(options));
    const auto weights_there = Clock::now();
    // This happens while kernels are still being compiled.
    BULKHEAD_RETURN_IF_ERROR(wear_in_queues(device, options.wait_timeout_ms));
    BULKHEAD_RETURN_IF_ERROR(compiler.finish([&](std::uint64_t done, std::uint64_t total) {
      if (options.progress) options.progress("kernels", done, total);
    }));
    load_times_ = {loading->times(), compiler.nanoseconds(), nanoseconds_since(weights_there)};
    BULKHEAD_TRY(sums_, MemorySums::create(context_, checksums_, options.wait_timeout_ms));
    limits_.most_pages_summed = sums_->most_pages();
    return prepare_chain(context_);
  }

  // Decides the number of KV pages and the length of the context before anything is allocated.
  Status size_cache(const TransformerOptions& options, std::span<const StepShape> shapes) {
    const model::ModelGraph& graph = context_.graph;
    limits_.asked_context = options.context != 0 ? options.context : graph.context;
    const std::uint32_t columns_ahead =
        limits_.max_columns * options.gpu.command_buffer_ring.steps_in_flight;
    const MemoryNeed need = memory_need(
        graph, context_.plan, context_.mapping, context_.kv_format, shapes,
        {limits_.asked_context, options.gpu.command_buffer_ring.steps_in_flight}, limits_.states);
    kv_per_token_ = need.kv.per_token + need.kv.per_window_token;
    CacheSize cache;
    if (options.predecessor != nullptr) {
      // The cache keeps the size that the predecessor chose. What is free now says nothing, because it does not include
      // the memory that the predecessor exported.
      const MemoryLayout& left = options.predecessor->layout;
      cache = left.cache;
      if (!cache.slabs_fit() || cache.context == 0 || cache.context > graph.context ||
          cache.pages == 0 || std::max(cache.pages, cache.window_pages) > 0x7fffffffU ||
          (cache.window_pages != 0) != context_.windows.exist())
        return not_as_expected("an impossible number of KV pages");
    } else if (options.shared) {
      cache = options.shared->cache;
      if (!context_.windows.exist()) cache = cache.without_windows();
    } else {
      CacheRoom room = room_on(*context_.device);
      room.beside_others = options.beside_others;
      BULKHEAD_TRY(cache,
                   plan_cache(room, graph, options.engine, options.context, columns_ahead, need));
    }
    context_.context = cache.context;
    limits_.page_tokens = k::kPageTokens;
    limits_.total_pages = context_.full_pages = cache.pages;
    limits_.first_pages = cache.first_pages;
    limits_.slab_pages = cache.slab_pages;
    limits_.eager_pages = cache.eager_pages;
    limits_.window = context_.windows.window;
    limits_.window_pages = cache.window_pages;
    limits_.window_first_pages = cache.window_first_pages;
    limits_.window_slab_pages = cache.window_slab_pages;
    limits_.window_eager_pages = cache.window_eager_pages;
    limits_.context =
        limits_.both_ways ? std::min(cache.context, limits_.max_columns) : cache.context;
    limits_.model_context = graph.context;
    limits_.vocabulary = graph.vocabulary;
    limits_.embedding = graph.embedding;
    limits_.takes_hidden = graph.start == model::StreamStart::kHidden;
    if (graph.vocabulary <= k::sample_vocabulary(context_.mapping)) {
      limits_.sampled_top_k = k::kSampleTopK;
      limits_.most_logprobs = k::kMostLogprobs;
      limits_.adjusts = graph.makes_logits;
    }
    return kv_.plan(cache, limits_.states);
  }

  gpu::Memory memory_kind() const {
    return exportable_ ? gpu::Memory::kShared : gpu::Memory::kDeviceLocal;
  }

  Result<std::unique_ptr<WeightUpload>> start_weights(const model::GgufFile& file,
                                                      const TransformerOptions& options) {
    gpu::Device& device = *context_.device;
    const WeightSource source{file, context_.graph, context_.plan, context_.context, memory_kind()};
    if (options.predecessor == nullptr)
      return WeightUpload::start(device, *parts_.blit_queue, source, context_.weights);
    const auto import = [this, &options, &device](const BlockPlan& plan) {
      return import_blocks(device, *options.predecessor, 0, plan.blocks.size(), "weights",
                           import_times_.import_ns);
    };
    return WeightUpload::over_imported(device, source, context_.weights, import);
  }

  Status place_kv(const TransformerOptions& options) {
    if (options.predecessor == nullptr) {
      BULKHEAD_RETURN_IF_ERROR(kv_.allocate(memory_kind()));
      exportable_ = exportable_ && !kv_.begins_late();
      return {};
    }
    BULKHEAD_TRY(std::vector<gpu::Buffer> blocks,
                 import_blocks(*context_.device, *options.predecessor, memory_layout_.weight_blocks,
                               kv_.block_bytes().size(), "KV pages", import_times_.import_ns));
    const Status taken = kv_.take(std::move(blocks));
    if (!taken.ok()) return not_as_expected(taken.error().message());
    if (kv_.begins_late()) return not_as_expected("slabs of KV pages at addresses that do not fit");
    const auto begin = Clock::now();
    kv_.take_slabs(options.predecessor->slabs);
    import_times_.import_ns += nanoseconds_since(begin);
    return {};
  }

  // Returns the steps' kernels, and those of product variants that have not been measured yet.
  Result<std::vector<gpu::KernelSpec>> kernels_to_compile(std::span<const StepShape> shapes,
                                                          const TransformerOptions& options) {
    if (options.gpu.autotune.enabled || options.product_variant != 0) {
      tuning_.emplace(context_.mapping, tuning_path(options.cache_folder, context_.device->info()));
      context_.tuning = &*tuning_;
    }
    BULKHEAD_TRY(std::vector<gpu::KernelSpec> kernels, kernels_needed(context_, shapes));
    if (options.product_variant != 0) {
      tuning_->choose_all(options.product_variant);
      BULKHEAD_TRY(kernels, kernels_needed(context_, shapes));
    }
    if (tuning_ && options.gpu.autotune.budget_ms > 0) {
      for (gpu::KernelSpec& spec : tuning_->unmeasured())
        kernels.push_back(std::move(spec));
    }
    return kernels;
  }

  void describe_memory(const WeightUpload& weights, const TransformerOptions& options) {
    const std::vector<std::uint64_t>& kv_sizes = kv_.store_bytes();
    const gpu::DeviceInfo& device = context_.device->info();
    char numbers[128];
    std::snprintf(numbers, sizeof numbers, "%d.%016llx/%s%u/kv-%s", kNumericsVersion,
                  static_cast<unsigned long long>(k::code_hash()),
                  mapping_name(context_.mapping).c_str(), context_.mapping.lanes,
                  config::to_string(options.engine.kv_type));
    // The daemon takes only printable text, whatever name a driver has.
    numerics_id_ = cleaned(device.name + "/" + device.driver, Escapes::kJson) + "/" + numbers;
    char layout[192];
    std::snprintf(
        layout, sizeof layout,
        "weights %016llx\nkv stores %zu sizes %016llx\nasked context %u kv_cache_mb %u "
        "kv_cache_max_mb %u max_batch %u widest step %u\n",
        static_cast<unsigned long long>(weights.layout_hash()), kv_sizes.size(),
        static_cast<unsigned long long>(fnv1a(std::as_bytes(std::span(kv_sizes)), kFnv1aStart)),
        options.context, options.engine.kv_cache_mb, options.engine.kv_cache_max_mb,
        options.engine.max_batch, limits_.max_columns);
    memory_layout_.identity = "device " + device.uuid + "\ndriver " + device.driver_uuid +
                              "\nnumerics " + numerics_id_ + "\n" + layout;
    memory_layout_.cache = kv_.size();
    memory_layout_.cache.context = limits_.context;
    memory_layout_.block_bytes = weights.plan().blocks;
    memory_layout_.weight_blocks = static_cast<std::uint32_t>(weights.plan().blocks.size());
    memory_layout_.block_bytes.insert(memory_layout_.block_bytes.end(), kv_.block_bytes().begin(),
                                      kv_.block_bytes().end());
  }

  // Computes the weights' checksums, by which a successor, the numerics id and later checks recognise them; or checks
  // that they are what the predecessor had.
  Status check_weights(const TransformerOptions& options) {
    const auto begin = Clock::now();
    auto sums = weight_sums(options.wait_timeout_ms);
    if (!sums.ok()) {
      const ErrorCode code = sums.error().code();
      const bool broken = code == ErrorCode::kDeviceLost || code == ErrorCode::kDeadlineExceeded;
      if (options.predecessor != nullptr || broken) return sums.error();
      spdlog::warn("the weights have no checksum, and a successor will load them itself: {}",
                   sums.error().message());
      exportable_ = false;
      return {};
    }
    checksums_ = std::move(*sums);
    name_weights();
    if (options.predecessor == nullptr) {
      summing_.reset();  // nobody asks again
      return {};
    }
    import_times_.check_ns = nanoseconds_since(begin);
    if (checksums_ != options.predecessor->checksums)
      return not_as_expected("the weights' checksums differ");
    return {};
  }

  // A stream never continues with other weights, tokens or hyperparameters, whatever the file is called: both
  // checksums are a part of the id.
  void name_weights() {
    char name[64];
    std::snprintf(
        name, sizeof name, "/weights-%016llx/file-%016llx",
        static_cast<unsigned long long>(fnv1a(std::as_bytes(std::span(checksums_)), kFnv1aStart)),
        static_cast<unsigned long long>(description_sum_));
    numerics_id_.insert(numerics_id_.rfind("/kv-"), name);
  }

  Result<std::vector<k::Checksum>> weight_sums(std::uint32_t timeout_ms) {
    std::vector<gpu::BufferSlice> slices;
    for (const gpu::Buffer& block : context_.weights.blocks)
      slices.push_back(gpu::slice(block));
    BULKHEAD_TRY(summing_, k::Checksums::create(*context_.device, slices, timeout_ms));
    return summing_->run();
  }

  void break_chain(std::uint32_t link) {
    context_.chain.broken_link = link;
    runner_.forget_all();
  }

  // Declared in this order: the leases and buffers below are destroyed before the parts that use them.
  gpu::Optimizations parts_;
  StepContext context_;
  engine::ExecutorLimits limits_;
  KvMemory kv_{context_};
  StepRunner runner_{context_, limits_, parts_};
  std::optional<Tuning> tuning_;

  std::uint64_t kv_per_token_ = 0;  // bytes
  std::string numerics_id_;
  std::uint64_t description_sum_ = 0;  // of the model's file
  bool exportable_ = false;
  MemoryLayout memory_layout_;
  std::vector<k::Checksum> checksums_;     // of the weights' blocks
  std::unique_ptr<k::Checksums> summing_;  // made once, of imported weights

  std::unique_ptr<MemorySums> sums_;  // set by load()

  ImportTimes import_times_;
  LoadTimes load_times_;
  std::chrono::milliseconds waited_{};     // for the oldest step, by ended()
  std::vector<FigureValue> kernel_times_;  // from the last profile()
  std::uint64_t profiles_ = 0;
};

}  // namespace

Result<std::unique_ptr<Transformer>> make_transformer(gpu::Device& device,
                                                      const model::GgufFile& file,
                                                      const model::ModelGraph& graph,
                                                      const TransformerOptions& options) {
  TransformerOptions sized = options;
  DeviceSize size = size_of(device.info());
  if (options.beside_others || options.shared) size.alone = false;
  sized.engine = with_sizes(options.engine, file, graph, size);
  auto made = LoadedTransformer::create(device, file, graph, sized);
  if (!made.ok()) return made.error().within("loading " + file.name());
  return made;
}

}  // namespace bulkhead::forward
