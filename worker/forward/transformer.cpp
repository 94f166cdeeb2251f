#include "worker/forward/transformer.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cfloat>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "config/base/log.hpp"
#include "gpu/optimizations.hpp"
#include "gpu/submission.hpp"
#include "worker/engine/philox.hpp"
#include "worker/forward/kernel_compiler.hpp"
#include "worker/forward/step_program.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// Raised when kernels keep their code but a step's order of additions changes.
constexpr int kNumericsVersion = 3;
constexpr std::uint32_t kSignOfLife_ms = 250;
// gpu_optimizations.persistent_step: auto.
constexpr bool kPersistentByDefault = false;
// Steps that have gained by kernels without barriers between them: wider ones lose where products
// are bound by arithmetic.
constexpr std::uint32_t kChainedColumns = 16;
// One is computed while the host looks at the one before and plans the next.
constexpr std::uint32_t kStepsInFlight = 2;

using Clock = std::chrono::steady_clock;

std::uint64_t nanoseconds_since(Clock::time_point start) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

std::string mib(std::uint64_t bytes) {
  return std::to_string((bytes + (1U << 20) - 1) >> 20) + " MiB";
}

std::uint32_t ceil_divide(std::uint64_t value, std::uint64_t by) {
  return static_cast<std::uint32_t>((value + by - 1) / by);
}

// How many pages and how long a context, from what was asked and what is free.
struct CacheSize {
  std::uint32_t context = 0;
  std::uint32_t pages = 0;  // for sequences; one more is kept for the warm-up
};

Result<CacheSize> plan_cache(const gpu::Device& device, const model::ModelConfig& config,
                             const TransformerOptions& options, const MemoryNeed& need) {
  const std::uint64_t page_bytes = need.kv_per_token * k::kPageTokens;
  const std::uint64_t free = device.free_memory_bytes();
  const std::uint64_t fixed = need.weights + need.transient;
  const std::string sizes = "the weights need " + mib(need.weights) +
                            ", one step's activations up to " + mib(need.transient) +
                            ", the KV cache " + mib(page_bytes) + " for each " +
                            std::to_string(k::kPageTokens) + " tokens; " + mib(free) +
                            " are free on " + device.info().name;
  if (options.context > config.context) {
    return Error(ErrorCode::kInvalidArgument,
                 "a context of " + std::to_string(options.context) +
                     " tokens was asked for, but the model's own limit is " +
                     std::to_string(config.context) + "; set a lower one");
  }
  if (fixed + page_bytes * 2 > free) {
    return Error(ErrorCode::kResourceExhausted,
                 "the model does not fit: " + sizes +
                     "; choose a smaller model or quantisation, or another device");
  }
  const std::uint32_t wanted_context = options.context != 0 ? options.context : config.context;
  const std::uint64_t full = ceil_divide(wanted_context, k::kPageTokens);

  std::uint64_t pages = 0;
  if (options.engine.kv_cache_mb != 0) {
    const std::uint64_t asked = std::uint64_t{options.engine.kv_cache_mb} << 20;
    if (fixed + asked > free) {
      return Error(ErrorCode::kResourceExhausted, "engine.kv_cache_mb asks for " + mib(asked) +
                                                      ", which does not fit: " + sizes +
                                                      "; set it lower");
    }
    pages = asked / page_bytes;
    pages = pages > 0 ? pages - 1 : 0;
  } else {
    // A GPU's memory has nothing else to do; a CPU device's is the machine's.
    const bool cpu = device.info().kind == gpu::DeviceKind::kCpu;
    const std::uint64_t sequences =
        cpu ? std::max(options.engine.max_batch / 4, 1U) : options.engine.max_batch;
    std::uint64_t budget = cpu ? std::min<std::uint64_t>((free - fixed) / 2, std::uint64_t{1} << 30)
                               : (free - fixed) / 10 * 9;
    budget = std::min(budget, (sequences * full + 1) * page_bytes);
    pages = budget / page_bytes > 0 ? budget / page_bytes - 1 : 0;
  }
  pages = std::min<std::uint64_t>(pages, 0x7fffffffU);
  if (options.context != 0 && pages < full) {
    return Error(ErrorCode::kResourceExhausted,
                 "a context of " + std::to_string(options.context) + " tokens needs " +
                     std::to_string(full) + " KV pages of " + mib(page_bytes) + ", but only " +
                     std::to_string(pages) + " fit: " + sizes +
                     "; set a lower context, or a higher engine.kv_cache_mb");
  }
  if (pages == 0) {
    return Error(ErrorCode::kResourceExhausted,
                 "no KV cache fits: " + sizes + "; raise engine.kv_cache_mb");
  }
  CacheSize size;
  size.pages = static_cast<std::uint32_t>(pages);
  size.context =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted_context, pages * k::kPageTokens));
  return size;
}

// As the CPU sampler rounds it: 1 / temperature and the logarithm of min-p.
// Of a token in the sampler's definition.
float logprob_of(const k::LogprobRow& row, float logit) {
  const double log_sum = std::log(static_cast<double>(row.sum) * 0x1p-40) + row.best;
  return static_cast<float>(logit - log_sum);
}

k::SampleChoice device_choice(const engine::Choice& choice, std::uint32_t position,
                              std::uint32_t vocabulary) {
  k::SampleChoice made{};
  const bool cut = choice.top_p < 1 || choice.min_p > 0;
  made.mode = cut ? 2 : 1;
  made.top_k = choice.top_k < vocabulary ? choice.top_k : 0;
  made.scale = std::min(1.0F / choice.temperature, FLT_MAX);
  made.least = choice.min_p > 0 ? std::log(choice.min_p) : -FLT_MAX;
  made.top_p = choice.top_p < 1 ? static_cast<std::uint32_t>(std::min(
                                      static_cast<double>(choice.top_p) * 0x1p32, 0x1p32 - 2))
                                : 0xFFFFFFFFU;
  const double u = engine::uniform_draw(choice.seed, std::uint64_t{position} + 1 - choice.first);
  const auto bits = static_cast<std::uint64_t>(u * 0x1p53);
  made.draw = static_cast<std::uint32_t>(bits >> 21);
  made.draw_low = static_cast<std::uint32_t>(bits & ((1U << 21) - 1));
  return made;
}

class Transformer final : public engine::Executor {
 public:
  static Result<std::unique_ptr<Transformer>> create(gpu::Device& device,
                                                     const model::GgufFile& file,
                                                     const model::ModelConfig& config,
                                                     const TransformerOptions& options) {
    std::unique_ptr<Transformer> self(new Transformer);
    const auto start = Clock::now();
    BULKHEAD_RETURN_IF_ERROR(self->load(device, file, config, options));
    const auto loaded = Clock::now();
    BULKHEAD_RETURN_IF_ERROR(self->warm_up(options));
    BULKHEAD_RETURN_IF_ERROR(self->tune(options));
    if (options.broken_link != 0) self->break_chain(options.broken_link);
    self->load_times_.warm_up_ns = nanoseconds_since(loaded);
    self->load_times_.total_ns = nanoseconds_since(start);
    self->log_load_times();
    return self;
  }

  // Whatever made it end, what the device still runs uses the cache, the weights and the
  // recordings, which go after this. Of a device that hangs nothing is freed.
  ~Transformer() override { parts_.drain(); }

  const engine::ExecutorLimits& limits() const override { return limits_; }

  Status submit(const engine::Step& step) override {
    if (in_flight_ == slots_.size())
      return Error(ErrorCode::kInternal,
                   "a step was submitted while as many as can be are in flight");
    BULKHEAD_RETURN_IF_ERROR(broken_);
    BULKHEAD_RETURN_IF_ERROR(check(step, limits_.total_pages));
    return start(step);
  }

  Result<std::span<const engine::ColumnOutput>> wait() override {
    if (in_flight_ == 0) return Error(ErrorCode::kInternal, "no step is in flight");
    const std::uint32_t index = oldest_slot();
    Slot& slot = slots_[index];
    Status finished = finish(slot);
    if (finished.ok() && gave_up(slot)) finished = compute_again();
    --in_flight_;
    if (!finished.ok()) {
      broken_ = finished;
      return finished.error();
    }
    give_memory_back();
    last_tokens_.clear();
    for (const engine::ColumnOutput& output : slot.outputs)
      last_tokens_.push_back(output.best);
    return std::span<const engine::ColumnOutput>(slot.outputs);
  }

  std::string device_name() const override { return context_.device->info().name; }
  std::string numerics_id() const override { return numerics_id_; }
  std::uint64_t weight_bytes() const override { return context_.weights.bytes; }
  std::uint64_t bytes_per_step() const { return context_.weights.bytes_per_step; }

  Result<KeptMemory> keep() const {
    if (!keepable_) {
      return Error(ErrorCode::kUnsupported,
                   context_.device->info().name + " can't share memory between processes");
    }
    KeptMemory kept;
    kept.layout = memory_layout_;
    kept.checksums = checksums_;
    for (const auto* blocks : {&context_.weights.blocks, &context_.kv_blocks}) {
      for (const gpu::Buffer& block : *blocks) {
        BULKHEAD_TRY(UniqueFd fd, context_.device->export_memory(block));
        kept.blocks.push_back(std::move(fd));
      }
    }
    return kept;
  }
  const TakeOverTimes& take_over_times() const { return take_over_times_; }

  std::vector<Counter> counters() const override {
    std::vector<Counter> all;
    for (gpu::Figure& figure : gpu::figures(parts_, *context_.device))
      all.push_back({std::move(figure.name), figure.value});
    all.push_back({"steps", static_cast<double>(steps_)});
    const std::uint64_t page_bytes = 2 * context_.kv.size() * context_.attention.page_bytes();
    all.push_back({"kv_bytes_per_token", static_cast<double>(page_bytes / k::kPageTokens)});
    all.push_back({"steps_computed_again", static_cast<double>(computed_again_)});
    all.push_back({"steps_in_flight", static_cast<double>(limits_.steps_in_flight)});
    all.push_back({"plan_seconds", static_cast<double>(plan_ns_) / 1e9});
    all.push_back({"command_buffers_begun", static_cast<double>(gpu::commands_begun())});
    const auto seconds = [&all](const char* name, std::uint64_t ns) {
      all.push_back({name, static_cast<double>(ns) / 1e9});
    };
    seconds("load_seconds", load_times_.total_ns);
    seconds("load_weights_seconds", load_times_.weights.total);
    seconds("load_allocate_seconds", load_times_.weights.allocate);
    seconds("load_read_thread_seconds", load_times_.weights.read);
    seconds("load_pack_thread_seconds", load_times_.weights.pack);
    seconds("load_copy_seconds", load_times_.weights.upload);
    seconds("load_kernels_seconds", load_times_.kernels_ns);
    seconds("load_warm_up_seconds", load_times_.warm_up_ns);
    seconds("vault_import_seconds", take_over_times_.import_ns);
    seconds("vault_check_seconds", take_over_times_.check_ns);
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
    const engine::PageIndex page = hidden_page_;
    const std::span<const engine::PageIndex> sequence(&page, 1);
    const engine::Column column{0, 0, 0, engine::Output::kGreedy};
    const std::uint64_t steps = steps_;
    BULKHEAD_RETURN_IF_ERROR(start({std::span(&column, 1), std::span(&sequence, 1)}, shapes_[0]));
    BULKHEAD_RETURN_IF_ERROR(wait());
    BULKHEAD_TRY(const Recorded* const recorded, recording(shapes_[0]));
    const auto times = ring().profile(recorded->id, last_slot());
    steps_ = steps;
    give_memory_back();
    if (!times.ok()) {
      if (times.error().code() == ErrorCode::kUnsupported) return {};  // no timestamps
      broken_ = times.error();
      return times.error();
    }
    kernel_times_.clear();
    for (const gpu::KernelTime& time : *times) {
      // "rope and KV write" becomes kernel_rope_and_kv_write.
      std::string name = "kernel_";
      for (const char c : time.name)
        name += std::isalnum(static_cast<unsigned char>(c)) != 0
                    ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                    : '_';
      kernel_times_.push_back({name + "_calls", static_cast<double>(time.calls)});
      kernel_times_.push_back({name + "_microseconds", time.microseconds});
      kernel_times_.push_back({name + "_bytes", static_cast<double>(time.bytes_moved)});
    }
    kernel_times_.push_back({"kernel_profiles", static_cast<double>(++profiles_)});
    return {};
  }

  Result<std::vector<gpu::KernelTime>> profile(const engine::Step& step) {
    BULKHEAD_RETURN_IF_ERROR(submit(step));
    BULKHEAD_RETURN_IF_ERROR(wait());
    BULKHEAD_TRY(const Recorded* const recorded, recording(last_shape_));
    auto times = ring().profile(recorded->id, last_slot());
    if (!times.ok()) broken_ = times.error();
    give_memory_back();
    return times;
  }

 private:
  struct Recorded {
    std::shared_ptr<Activations> activations;
    std::uint64_t block_address = 0;    // of these, when the programs were made
    std::vector<StepProgram> programs;  // by slot
    gpu::CommandRing::RecordingId id = 0;
  };
  // A step in flight, and what is its own: parameters, logits and results on the device, and their
  // places on the host.
  struct Slot {
    gpu::BufferSlice parameters, results, logits, logprobs;  // of the host
    gpu::CommandRing::Ticket ticket = 0;
    std::optional<gpu::BlitQueue::Ticket> downloaded;  // the last download of the step
    std::vector<engine::ColumnOutput> outputs;
    std::uint64_t parameter_bytes = 0;
    bool samples = false;
    std::vector<std::int32_t> wanted;       // of each output: Column::logprobs
    bool tells_logprobs = false;            // some of them
    std::vector<engine::RankedToken> tops;  // of all outputs
    StepShape shape;
    bool may_give_up = false;  // its workgroups wait for each other
  };

  Transformer() = default;

  gpu::CommandRing& ring() { return *parts_.command_ring; }
  gpu::BlitQueue& blit() { return *parts_.blit_queue; }
  // That of the step submitted last.
  std::uint32_t last_slot() const {
    const auto count = static_cast<std::uint32_t>(slots_.size());
    return (next_slot_ + count - 1) % count;
  }
  // That of the step to be waited for next.
  std::uint32_t oldest_slot() const {
    return static_cast<std::uint32_t>((next_slot_ + slots_.size() - in_flight_) % slots_.size());
  }
  // Without the pool a step's memory is allocated for it and freed after it.
  bool keeps_memory() const { return parts_.memory_pool->enabled(); }
  // Without the ring a command buffer is recorded once the one before has ended; without the blit
  // queue the host waits for each transfer; without the pool a step's memory goes with it.
  bool runs_ahead() const {
    return parts_.command_ring->enabled() && parts_.memory_pool->enabled() &&
           parts_.blit_queue->enabled();
  }

  Status load(gpu::Device& device, const model::GgufFile& file, const model::ModelConfig& config,
              const TransformerOptions& options) {
    context_.device = &device;
    context_.config = config;
    context_.mapping =
        options.lanes_mapping ? k::lanes_mapping(device.info()) : k::mapping_for(device);
    context_.attention = {config.head_size, config.heads, config.kv_heads,
                          kv_format(options.engine.kv_type),
                          config.rope_pairing == model::RopePairing::kHalves};
    const MemoryNeed need = memory_need(file, config, options.engine, context_.mapping.units);
    // What is free now is less by what is kept: its size was decided on when it was made.
    CacheSize cache;
    if (options.kept != nullptr) {
      cache = {options.kept->layout.context, options.kept->layout.pages};
      if (cache.context == 0 || cache.context > config.context || cache.pages == 0 ||
          cache.pages > 0x7fffffffU)
        return not_as_expected("an impossible number of KV pages");
    } else {
      BULKHEAD_TRY(cache, plan_cache(device, config, options, need));
    }
    keepable_ = options.keepable && device.info().shares_memory;
    context_.context = cache.context;
    hidden_page_ = cache.pages;

    limits_.max_columns = options.engine.prefill_chunk + options.engine.max_batch;
    limits_.max_outputs = options.engine.max_batch;
    limits_.max_sequences = options.engine.max_batch;
    limits_.page_tokens = k::kPageTokens;
    limits_.total_pages = cache.pages;
    limits_.context = cache.context;
    limits_.vocabulary = config.vocabulary;
    if (config.vocabulary <= k::kSampleVocabulary) {
      limits_.sampled_top_k = k::kSampleTopK;
      limits_.most_logprobs = k::kMostLogprobs;
    }
    shapes_ = step_shapes(limits_.max_columns, limits_.max_outputs);
    wait_timeout_ms_ = options.wait_timeout_ms;

    BULKHEAD_TRY(parts_, gpu::create_optimizations(device, options.gpu, options.wait_timeout_ms));
    context_.slots = limits_.steps_in_flight = runs_ahead() ? kStepsInFlight : 1;

    const auto upload_progress = [&options](std::uint64_t done, std::uint64_t total) {
      if (options.progress) options.progress("weights", done, total);
    };
    // Rotation and KV write are the product's business there, unless whole heads are normed first, are padded, or are
    // rounded by blocks.
    const bool pairs = !context_.mapping.rows && !config.qk_norm && config.head_size % 8 == 0 &&
                       context_.attention.kv != k::KvFormat::kQ8;
    WeightOptions weight_options;
    weight_options.pair_rotating_rows = pairs;
    weight_options.units = context_.mapping.units;
    weight_options.memory = keepable_ ? gpu::Memory::kShared : gpu::Memory::kDeviceLocal;
    std::unique_ptr<WeightUpload> loading;
    if (options.kept != nullptr) {
      const auto import = [&](const BlockPlan& plan) {
        return import_blocks(*options.kept, 0, plan.blocks.size(), "weights");
      };
      BULKHEAD_TRY(loading, WeightUpload::take_over(device, file, config, cache.context,
                                                    context_.weights, weight_options, import));
    } else {
      BULKHEAD_TRY(loading, WeightUpload::start(device, blit(), file, config, cache.context,
                                                context_.weights, weight_options));
    }
    // The whole plan is known: whatever is kept must be the same.
    context_.kv_half = (std::uint64_t{cache.pages} + 1) * context_.attention.page_bytes();
    const BlockPlan kv_plan =
        plan_blocks(std::vector<std::uint64_t>(config.layers, context_.kv_half * 2),
                    device.info().max_allocation_bytes);
    describe_memory(*loading, kv_plan, options);
    if (options.kept != nullptr) BULKHEAD_RETURN_IF_ERROR(compare_with(*options.kept));
    // The kernels are compiled, and the KV pages allocated, while the weights are on their way.
    context_.kv.resize(config.layers);
    want_persistent(options);
    want_chain(options);
    if (options.gpu.autotune.enabled || options.product_variant != 0) {
      tuning_.emplace(context_.mapping, tuning_path(options.cache_folder, device.info()));
      context_.tuning = &*tuning_;
    }
    BULKHEAD_TRY(std::vector<gpu::KernelSpec> kernels, kernels_needed());
    if (options.product_variant != 0) {
      tuning_->choose_all(options.product_variant);
      BULKHEAD_TRY(kernels, kernels_needed());
    }
    if (tuning_ && options.gpu.autotune.budget_ms > 0) {
      for (gpu::KernelSpec& spec : tuning_->unmeasured())
        kernels.push_back(std::move(spec));
    }
    KernelCompiler compiler(device, std::move(kernels));
    BULKHEAD_RETURN_IF_ERROR(loading->place(upload_progress));

    if (options.kept != nullptr) {
      BULKHEAD_TRY(context_.kv_blocks, import_blocks(*options.kept, memory_layout_.weight_blocks,
                                                     kv_plan.blocks.size(), "KV pages"));
    } else {
      for (const std::uint64_t bytes : kv_plan.blocks) {
        BULKHEAD_TRY(gpu::Buffer block, device.allocate(bytes, weight_options.memory, "KV pages"));
        context_.kv_blocks.push_back(std::move(block));
      }
    }
    for (std::uint32_t layer = 0; layer < config.layers; ++layer) {
      const Place& place = kv_plan.places[layer];
      context_.kv[layer] = context_.kv_blocks[place.block].address() + place.offset;
    }

    const std::uint64_t pages_per_sequence = ceil_divide(cache.context, k::kPageTokens);
    ParameterLayout& layout = context_.parameter_layout;
    layout.outputs = k::kHeaderBytes + std::uint64_t{limits_.max_columns} * sizeof(k::ColumnEntry);
    layout.choices = (layout.outputs + limits_.max_outputs * 4 + 15) / 16 * 16;
    layout.pages = layout.choices + limits_.max_outputs * sizeof(k::SampleChoice);
    layout.bytes = layout.pages + std::uint64_t{limits_.max_sequences} * pages_per_sequence * 4;
    BULKHEAD_RETURN_IF_ERROR(make_slots(device));
    BULKHEAD_RETURN_IF_ERROR(loading->finish(upload_progress));
    if (keepable_) BULKHEAD_RETURN_IF_ERROR(check_weights(options));
    const auto weights_there = Clock::now();
    BULKHEAD_RETURN_IF_ERROR(compiler.finish([&](std::uint64_t done, std::uint64_t total) {
      if (options.progress) options.progress("kernels", done, total);
    }));
    load_times_ = {loading->times(), compiler.nanoseconds(), nanoseconds_since(weights_there)};

    BULKHEAD_RETURN_IF_ERROR(prepare_persistent());
    if (context_.chain.columns > 0) {
      BULKHEAD_TRY(context_.chain.counts,
                   device.allocate(std::uint64_t{chain_links(config.layers)} * k::kChainCountBytes,
                                   gpu::Memory::kDeviceLocal, "chain of kernels"));
    }

    return {};
  }

  static Error not_as_expected(const std::string& what) {
    return Error(ErrorCode::kCorrupt, "what a predecessor kept can't be used: " + what);
  }

  void describe_memory(const WeightUpload& weights, const BlockPlan& kv,
                       const TransformerOptions& options) {
    const gpu::DeviceInfo& device = context_.device->info();
    char numbers[96];
    std::snprintf(numbers, sizeof numbers, "%d.%016llx/%s%u/kv-%s", kNumericsVersion,
                  static_cast<unsigned long long>(k::code_hash()),
                  context_.mapping.rows    ? "rows"
                  : context_.mapping.units ? "units"
                                           : "lanes",
                  context_.mapping.lanes, config::to_string(options.engine.kv_type));
    numerics_id_ = device.name + "/" + device.driver + "/" + numbers;
    char layout[160];
    std::snprintf(layout, sizeof layout,
                  "weights %016llx\nkv layers %u half %llu\nasked context %u kv_cache_mb %u "
                  "max_batch %u prefill_chunk %u\n",
                  static_cast<unsigned long long>(weights.layout_hash()), context_.config.layers,
                  static_cast<unsigned long long>(context_.kv_half), options.context,
                  options.engine.kv_cache_mb, options.engine.max_batch,
                  options.engine.prefill_chunk);
    memory_layout_.identity = "device " + device.uuid + "\ndriver " + device.driver_uuid +
                              "\nnumerics " + numerics_id_ + "\n" + layout;
    memory_layout_.context = limits_.context;
    memory_layout_.pages = limits_.total_pages;
    memory_layout_.block_bytes = weights.plan().blocks;
    memory_layout_.weight_blocks = static_cast<std::uint32_t>(weights.plan().blocks.size());
    memory_layout_.block_bytes.insert(memory_layout_.block_bytes.end(), kv.blocks.begin(),
                                      kv.blocks.end());
  }

  // Before any of it is touched.
  Status compare_with(const KeptMemory& kept) const {
    const MemoryLayout& theirs = kept.layout;
    if (theirs.identity != memory_layout_.identity) {
      const auto [ours, other] = std::ranges::mismatch(memory_layout_.identity, theirs.identity);
      const auto line =
          static_cast<std::size_t>(std::count(memory_layout_.identity.begin(), ours, '\n'));
      const char* const names[] = {
          "the device",          "the driver",   "the kernels or number formats",
          "the model's tensors", "the KV cache", "the settings"};
      return not_as_expected(std::string("it is of other ") +
                             (line < std::size(names) ? names[line] + 4 : "lines"));
    }
    if (!(theirs == memory_layout_)) return not_as_expected("its blocks are of other sizes");
    if (kept.blocks.size() != theirs.block_bytes.size() ||
        kept.checksums.size() != theirs.weight_blocks)
      return not_as_expected("parts of it are missing");
    return {};
  }

  Result<std::vector<gpu::Buffer>> import_blocks(KeptMemory& kept, std::size_t first,
                                                 std::size_t count, const char* name) {
    const auto begin = Clock::now();
    std::vector<gpu::Buffer> blocks;
    for (std::size_t i = first; i < first + count; ++i) {
      BULKHEAD_TRY(gpu::Buffer block,
                   context_.device->import_memory(std::move(kept.blocks[i]),
                                                  kept.layout.block_bytes[i], name));
      blocks.push_back(std::move(block));
    }
    take_over_times_.import_ns += nanoseconds_since(begin);
    return blocks;
  }

  // Their sums, for a successor; or whether they are what the predecessor had.
  Status check_weights(const TransformerOptions& options) {
    const auto begin = Clock::now();
    std::vector<gpu::BufferSlice> slices;
    for (const gpu::Buffer& block : context_.weights.blocks)
      slices.push_back(gpu::slice(block));
    auto sums = k::checksums(*context_.device, slices, options.wait_timeout_ms);
    if (!sums.ok()) {
      const ErrorCode code = sums.error().code();
      const bool broken = code == ErrorCode::kDeviceLost || code == ErrorCode::kDeadlineExceeded;
      if (options.kept != nullptr || broken) return sums.error();
      spdlog::warn("a successor will load the weights itself: {}", sums.error().message());
      keepable_ = false;
      return {};
    }
    checksums_ = std::move(*sums);
    if (options.kept == nullptr) return {};
    take_over_times_.check_ns = nanoseconds_since(begin);
    if (checksums_ != options.kept->checksums)
      return not_as_expected("the weights' checksums differ");
    return {};
  }

  // Narrow steps in one dispatch, if the settings, the device and the model allow it.
  void want_persistent(const TransformerOptions& options) {
    PersistentLayers& persistent = context_.persistent;
    const config::PersistentStep setting = options.gpu.persistent_step;
    // A CPU has few processors to wait on each other.
    if (setting == config::PersistentStep::kOff || !options.gpu.enabled || !keeps_memory() ||
        context_.device->info().kind == gpu::DeviceKind::kCpu) {
      return;
    }
    if (setting == config::PersistentStep::kAuto && !kPersistentByDefault) return;
    persistent.slots = persistent_slots(context_);
    if (!persistent.slots.empty()) {
      persistent.columns = k::kPersistentColumns;
    } else if (context_.attention.kv == k::KvFormat::kQ8) {
      spdlog::warn(
          "persistent_step: not with engine.kv_type q8_0, whose keys and values are rounded by a "
          "kernel of their own; layers are dispatched");
    }
  }

  // Narrow steps without barriers, likewise.
  void want_chain(const TransformerOptions& options) {
    const config::ChainedKernels setting = options.gpu.chained_kernels;
    if (setting == config::ChainedKernels::kOff || !options.gpu.enabled || !keeps_memory() ||
        !context_.mapping.units || !context_.mapping.attention_together) {
      return;
    }
    // Where it has been tried: a dispatch's workgroups start in order there.
    constexpr std::uint32_t kNvidia = 0x10de;
    if (setting == config::ChainedKernels::kAuto && context_.device->info().vendor_id != kNvidia) {
      return;
    }
    if (context_.attention.kv == k::KvFormat::kQ8) {
      spdlog::info(
          "chained_kernels: not with engine.kv_type q8_0, whose keys and values are rounded by a "
          "kernel of their own; barriers stand between dispatches");
      return;
    }
    context_.chain.columns = kChainedColumns;
  }

  // Workgroups wait for each other, so that no more may be started than run at the same time.
  Status prepare_persistent() {
    PersistentLayers& persistent = context_.persistent;
    if (persistent.columns == 0) return {};
    BULKHEAD_TRY(persistent.sync,
                 context_.device->allocate(sizeof(k::PersistentSync), gpu::Memory::kDeviceLocal,
                                           "persistent step"));
    const std::uint32_t zeros[4] = {};
    BULKHEAD_RETURN_IF_ERROR(
        blit().upload(std::as_bytes(std::span(zeros)), gpu::slice(persistent.sync)));
    BULKHEAD_RETURN_IF_ERROR(blit().finish_uploads());
    persistent.workgroups = 0xffffffffU;
    for (std::uint32_t columns = 1; columns <= persistent.columns; columns *= 2) {
      BULKHEAD_TRY(const std::uint32_t at_once, workgroups_at_once(context_, ring(), columns));
      persistent.workgroups = std::min(persistent.workgroups, at_once);
    }
    if (persistent.workgroups == 0) {
      spdlog::warn(
          "persistent_step: how many workgroups run at once is not to be told; layers are "
          "dispatched");
      persistent.columns = 0;
    } else {
      spdlog::info("persistent_step: layers in one dispatch of {} workgroups",
                   persistent.workgroups);
    }
    return {};
  }

  Status make_slots(gpu::Device& device) {
    const auto aligned = [](std::uint64_t bytes) { return (bytes + 255) / 256 * 256; };
    ParameterLayout& layout = context_.parameter_layout;
    layout.stride = aligned(layout.bytes);
    context_.result_rows =
        static_cast<std::uint32_t>(aligned(std::uint64_t{limits_.max_outputs} * 8 + 8) / 8);
    const std::uint64_t result_bytes = std::uint64_t{context_.result_rows} * 8;
    const std::uint64_t logits_bytes =
        aligned(std::uint64_t{limits_.max_outputs} * limits_.vocabulary * sizeof(float));
    const std::uint64_t slots = context_.slots;
    using gpu::Memory;
    BULKHEAD_TRY(context_.parameters,
                 device.allocate(slots * layout.stride, Memory::kDeviceLocal, "step parameters"));
    BULKHEAD_TRY(context_.results,
                 device.allocate(slots * result_bytes, Memory::kDeviceLocal, "step results"));
    BULKHEAD_TRY(host_parameters_, device.allocate(slots * layout.stride, Memory::kUpload,
                                                   "step parameters of the host"));
    BULKHEAD_TRY(host_results_, device.allocate(slots * result_bytes, Memory::kReadback,
                                                "step results of the host"));
    BULKHEAD_TRY(context_.logprobs,
                 device.allocate(slots * context_.result_rows * sizeof(k::LogprobRow),
                                 Memory::kDeviceLocal, "log-probabilities"));
    BULKHEAD_TRY(host_logprobs_,
                 device.allocate(slots * context_.result_rows * sizeof(k::LogprobRow),
                                 Memory::kReadback, "log-probabilities of the host"));
    BULKHEAD_TRY(host_logits_,
                 device.allocate(slots * logits_bytes, Memory::kReadback, "logits of the host"));
    slots_.resize(slots);
    for (std::size_t i = 0; i < slots; ++i) {
      slots_[i].parameters = gpu::slice(host_parameters_, i * layout.stride, layout.stride);
      slots_[i].results = gpu::slice(host_results_, i * result_bytes, result_bytes);
      slots_[i].logits = gpu::slice(host_logits_, i * logits_bytes, logits_bytes);
      const std::uint64_t logprob_bytes = context_.result_rows * sizeof(k::LogprobRow);
      slots_[i].logprobs = gpu::slice(host_logprobs_, i * logprob_bytes, logprob_bytes);
      slots_[i].outputs.reserve(limits_.max_outputs);
      slots_[i].wanted.reserve(limits_.max_outputs);
      slots_[i].tops.resize(std::size_t{limits_.max_outputs} * k::kMostLogprobs);
      std::memset(slots_[i].parameters.mapped, 0, layout.stride);
    }
    page_starts_.reserve(limits_.max_sequences);
    last_tokens_.reserve(limits_.max_outputs);
    return {};
  }

  // What the programs of all shapes are made of.
  Result<std::vector<gpu::KernelSpec>> kernels_needed() {
    std::vector<gpu::KernelSpec> specs;
    if (keepable_) specs.push_back(k::checksum_kernel());
    context_.wanted = &specs;
    Status status;
    for (const StepShape shape : shapes_) {
      if (const auto listed = build_step(context_, Activations(), shape); !listed.ok())
        status = listed.error();
    }
    if (const auto listed = build_sampling(context_, Activations()); !listed.ok())
      status = listed.error();
    if (const auto listed = build_logprobs(context_, Activations()); !listed.ok())
      status = listed.error();
    context_.wanted = nullptr;
    if (!status.ok()) return status.error();
    return specs;
  }

  // Runs each shape once on the hidden page, so that every kernel is compiled and every recording
  // exists before the first request. One column is enough for that: a shape's kernels are the same
  // whatever the step's counts say.
  Status warm_up(const TransformerOptions& options) {
    const engine::PageIndex page = hidden_page_;
    const std::span<const engine::PageIndex> sequence(&page, 1);
    const engine::Choice choice;
    engine::Column column{0, 0, 0, engine::Output::kGreedy};
    if (limits_.sampled_top_k > 0) column.output = engine::Output::kSampled;
    column.choice = &choice;
    column.logprobs = std::min(limits_.most_logprobs, 1);
    const engine::Step step{std::span(&column, 1), std::span(&sequence, 1)};
    std::size_t done = 0;
    // What takes long, in the first shape most of all, is one driver's call or one wait: all of
    // them give signs of life.
    context_.alive = [&] {
      if (options.progress) options.progress("warm-up", done, shapes_.size());
    };
    // Wide ones first: a ring that is smaller keeps the narrow ones.
    Status status;
    while (status.ok() && done < shapes_.size()) {
      context_.alive();
      const bool waiting = context_.chain.columns + context_.persistent.columns > 0;
      status = warm_up_one(step, shapes_[shapes_.size() - 1 - done]);
      ++done;
      // It gave up: other recordings from here on.
      if (waiting && context_.chain.columns + context_.persistent.columns == 0) done = 0;
    }
    // Once more, with everything compiled: how fast this device is with this model.
    const auto narrow = Clock::now();
    if (status.ok()) status = warm_up_one(step, shapes_.front());
    limits_.step_us = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(nanoseconds_since(narrow) / 1000, 1, 1U << 31));
    context_.alive();
    context_.alive = nullptr;
    BULKHEAD_RETURN_IF_ERROR(status);
    steps_ = 0;
    const auto saving = Clock::now();
    if (const Status saved = context_.device->save_pipeline_cache(); !saved.ok())
      spdlog::warn("the compiled kernels could not be kept: {}", saved.error().message());
    load_times_.save_ns = nanoseconds_since(saving);
    return {};
  }

  // Measures variants of the narrow steps' products, on the hidden page, and keeps the fastest.
  Status tune(const TransformerOptions& options) {
    if (!tuning_ || options.gpu.autotune.budget_ms == 0 || tuning_->unmeasured().empty()) return {};
    const std::uint64_t steps = steps_;
    const Status tuned = tuning_->run(
        [&](std::uint32_t columns) {
          if (options.progress)
            options.progress("tuning", tuning_->measured(), tuning_->products());
          return time_step(columns);
        },
        options.gpu.autotune.budget_ms);
    if (!tuned.ok() && !broken_.ok()) return tuned;
    if (!tuned.ok()) spdlog::warn("{}; kernels are used as they are", tuned.error().message());
    // Whatever was tried last is not what was chosen.
    forget_recordings();
    BULKHEAD_RETURN_IF_ERROR(warm_up(options));
    steps_ = steps;
    return {};
  }

  // A step of so many columns, made anew with the tuning's choices: the least of several, in
  // microseconds.
  Result<double> time_step(std::uint32_t columns) {
    const StepShape shape = shape_for(shapes_, columns, std::min(columns, limits_.max_outputs));
    columns = std::min(columns, shape.columns);
    if (const auto found = recorded_.find(shape); found != recorded_.end()) {
      ring().drop(found->second->id);
      recorded_.erase(found);
    }
    const engine::PageIndex page = hidden_page_;
    const std::span<const engine::PageIndex> sequence(&page, 1);
    std::vector<engine::Column> all(columns);
    for (std::uint32_t i = 0; i < columns; ++i)
      all[i] = {0, i % k::kPageTokens, 0,
                i < shape.outputs ? engine::Output::kGreedy : engine::Output::kNone};
    const engine::Step step{all, std::span(&sequence, 1)};
    double least = 0;
    for (int run = 0; run < 5; ++run) {
      const auto begin = Clock::now();
      BULKHEAD_RETURN_IF_ERROR(start(step, shape));
      BULKHEAD_RETURN_IF_ERROR(wait().ok() ? Status() : broken_);
      const double took = static_cast<double>(nanoseconds_since(begin)) / 1e3;
      // The first makes the recording.
      if (run == 1 || (run > 1 && took < least)) least = took;
    }
    return least;
  }

  void log_load_times() const {
    const PipelineTimes& times = load_times_.weights;
    const auto ms = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e6; };
    spdlog::debug(
        "loaded in {:.0f} ms: {:.2f} GB of weights in {:.0f} ms (allocating {:.0f}; on {} threads "
        "reading {:.0f} and packing {:.0f}; sending {:.0f}, with nothing to send {:.0f}; copies on "
        "the device {:.0f}), kernels in {:.0f} ms ({:.0f} after the weights), warm-up in {:.0f} ms "
        "(of it {:.0f} keeping kernels)",
        ms(load_times_.total_ns), static_cast<double>(context_.weights.bytes) / 1e9,
        ms(times.total), ms(times.allocate), times.threads, ms(times.read), ms(times.pack),
        ms(times.send), ms(times.starved), ms(times.upload), ms(load_times_.kernels_ns),
        ms(load_times_.after_weights_ns), ms(load_times_.warm_up_ns), ms(load_times_.save_ns));
  }

  Status warm_up_one(const engine::Step& step, StepShape shape) {
    const auto begin = Clock::now();
    BULKHEAD_RETURN_IF_ERROR(start(step, shape));
    const std::uint64_t started = nanoseconds_since(begin);
    const gpu::CommandRing::Ticket ticket = slots_[last_slot()].ticket;
    for (std::uint32_t waited = 0; waited < wait_timeout_ms_; waited += kSignOfLife_ms) {
      BULKHEAD_TRY(const bool over,
                   ring().finished(ticket, std::min(kSignOfLife_ms, wait_timeout_ms_)));
      if (over) break;
      context_.alive();
    }
    BULKHEAD_TRY([[maybe_unused]] const auto outputs, wait());
    spdlog::debug("warm-up: steps of up to {} columns recorded in {:.1f} ms, run in {:.1f} ms",
                  shape.columns, static_cast<double>(started) / 1e6,
                  static_cast<double>(nanoseconds_since(begin) - started) / 1e6);
    return {};
  }

  // The engine's promises, checked: an address on the device must never come from a bad index.
  Status check(const engine::Step& step, std::uint32_t page_count) const {
    const auto refuse = [](const std::string& what) {
      return Error(ErrorCode::kInvalidArgument, "step: " + what);
    };
    if (step.columns.empty()) return refuse("no columns");
    if (step.columns.size() > limits_.max_columns) {
      return refuse(std::to_string(step.columns.size()) + " columns; at most " +
                    std::to_string(limits_.max_columns));
    }
    if (step.sequences.size() > limits_.max_sequences) {
      return refuse(std::to_string(step.sequences.size()) + " sequences; at most " +
                    std::to_string(limits_.max_sequences));
    }
    std::uint32_t outputs = 0;
    for (const engine::Column& column : step.columns) {
      if (column.token >= limits_.vocabulary)
        return refuse("token " + std::to_string(column.token));
      if (column.chosen_by != engine::kByHost && column.chosen_by >= chosen_rows_)
        return refuse("output " + std::to_string(column.chosen_by) + " of the step before");
      if (column.position >= limits_.context)
        return refuse("position " + std::to_string(column.position));
      if (column.sequence >= step.sequences.size())
        return refuse("sequence " + std::to_string(column.sequence));
      if (column.position / k::kPageTokens >= step.sequences[column.sequence].size()) {
        return refuse("position " + std::to_string(column.position) + " has no page");
      }
      outputs += column.output != engine::Output::kNone ? 1 : 0;
      if (column.output == engine::Output::kSampled &&
          (column.choice == nullptr || limits_.sampled_top_k == 0 ||
           (column.choice->top_k > limits_.sampled_top_k &&
            column.choice->top_k < limits_.vocabulary))) {
        return refuse("a draw that the device can't make");
      }
      if (column.logprobs >= 0 && (column.logprobs > limits_.most_logprobs ||
                                   (column.output != engine::Output::kGreedy &&
                                    column.output != engine::Output::kSampled))) {
        return refuse("log-probabilities that the device can't tell");
      }
    }
    if (outputs > limits_.max_outputs) return refuse(std::to_string(outputs) + " outputs");
    for (const auto& pages : step.sequences) {
      if (pages.size() > ceil_divide(limits_.context, k::kPageTokens))
        return refuse("more pages than the context has");
      for (const engine::PageIndex page : pages) {
        if (page >= page_count) return refuse("page " + std::to_string(page));
      }
    }
    return {};
  }

  Status start(const engine::Step& step) {
    const auto outputs = std::count_if(
        step.columns.begin(), step.columns.end(),
        [](const engine::Column& column) { return column.output != engine::Output::kNone; });
    return start(step, shape_for(shapes_, static_cast<std::uint32_t>(step.columns.size()),
                                 static_cast<std::uint32_t>(outputs)));
  }

  Status start(const engine::Step& step, StepShape shape) {
    Slot& slot = slots_[next_slot_];
    write_parameters(step, slot);
    last_shape_ = slot.shape = shape;
    BULKHEAD_TRY(const Recorded* const recorded, recording(shape));
    BULKHEAD_TRY(const Followers followers, followers_of(slot, *recorded));
    const Status launched = launch(*recorded, followers, next_slot_);
    if (!launched.ok()) {
      broken_ = launched;
      return launched;
    }
    chosen_rows_ = static_cast<std::uint32_t>(slot.outputs.size());
    next_slot_ = (next_slot_ + 1) % static_cast<std::uint32_t>(slots_.size());
    ++in_flight_;
    ++steps_;
    return {};
  }

  // What is submitted behind a step; null: nothing.
  using Followers = std::array<const Recorded*, 2>;
  Result<Followers> followers_of(const Slot& slot, const Recorded& step) {
    Followers followers{};
    if (slot.samples) {
      BULKHEAD_TRY(followers[0], behind(sampling_, build_sampling, step));
    }
    if (slot.tells_logprobs) {
      BULKHEAD_TRY(followers[1], behind(logprobs_, build_logprobs, step));
    }
    return followers;
  }

  // After a failure some of it may run.
  Status launch(const Recorded& recorded, const Followers& followers, std::uint32_t index) {
    Slot& slot = slots_[index];
    slot.may_give_up =
        slot.shape.columns <= std::max(context_.chain.columns, context_.persistent.columns);
    gpu::BufferSlice from = slot.parameters;
    from.bytes = slot.parameter_bytes;
    BULKHEAD_RETURN_IF_ERROR(blit().upload_from(
        from, gpu::slice(context_.parameters, index * context_.parameter_layout.stride,
                         context_.parameter_layout.stride)));
    const gpu::CommandRing::After uploaded = blit().uploads_done();
    const bool wait_for_upload = uploaded.semaphore != VK_NULL_HANDLE;
    BULKHEAD_TRY(slot.ticket,
                 ring().submit(recorded.id, std::span(&uploaded, wait_for_upload ? 1 : 0), index));
    for (const Recorded* const next : followers) {
      if (next == nullptr) continue;
      BULKHEAD_TRY(slot.ticket, ring().submit(next->id, {}, index));
    }
    return start_downloads(recorded, index);
  }

  Status finish(Slot& slot) {
    BULKHEAD_RETURN_IF_ERROR(ring().wait(slot.ticket));
    if (!slot.downloaded) return {};
    BULKHEAD_RETURN_IF_ERROR(blit().finish_download_to(*slot.downloaded));
    const std::byte* row = slot.results.mapped;
    for (std::size_t i = 0; i < slot.outputs.size(); ++i) {
      engine::ColumnOutput& output = slot.outputs[i];
      std::memcpy(&output.best, row, 4);
      std::memcpy(&output.best_logprob, row + 4, 4);
      if (slot.wanted[i] >= 0) take_logprobs(slot, i);
      row += 8;
    }
    return {};
  }

  static void take_logprobs(Slot& slot, std::size_t index) {
    engine::ColumnOutput& output = slot.outputs[index];
    k::LogprobRow row;
    std::memcpy(&row, slot.logprobs.mapped + index * sizeof row, sizeof row);
    output.logprob = logprob_of(row, row.chosen);
    const std::size_t count = std::min(row.count, k::kMostLogprobs);
    engine::RankedToken* const top = slot.tops.data() + index * k::kMostLogprobs;
    for (std::size_t i = 0; i < count; ++i)
      top[i] = {row.tokens[i].id, logprob_of(row, row.tokens[i].logit)};
    output.top = {top, count};
  }

  // A finished step: whether workgroups have waited for each other in vain.
  bool gave_up(const Slot& slot) const {
    if (!slot.may_give_up) return false;
    std::uint32_t status = 0;
    std::memcpy(&status, slot.results.mapped + (std::uint64_t{context_.result_rows} - 1) * 8, 4);
    return status != 0;
  }

  // The steps in flight, of which the oldest gave up and the others have worked on with what it
  // left. From here on barriers stand between dispatches.
  Status compute_again() {
    spdlog::warn(
        "workgroups of a step waited for each other in vain: it is computed again, and from here "
        "on as gpu_optimizations.chained_kernels and persistent_step off do");
    const std::uint32_t first = oldest_slot();
    const auto count = static_cast<std::uint32_t>(slots_.size());
    for (std::uint32_t i = 1; i < in_flight_; ++i)
      BULKHEAD_RETURN_IF_ERROR(finish(slots_[(first + i) % count]));
    context_.chain.columns = context_.persistent.columns = 0;
    computed_again_ += in_flight_;
    forget_recordings();
    tell_tokens(slots_[first], (first + count - 1) % count);
    for (std::uint32_t i = 0; i < in_flight_; ++i) {
      const std::uint32_t index = (first + i) % count;
      BULKHEAD_TRY(const Recorded* const recorded, recording(slots_[index].shape));
      BULKHEAD_TRY(const Followers followers, followers_of(slots_[index], *recorded));
      BULKHEAD_RETURN_IF_ERROR(launch(*recorded, followers, index));
    }
    return finish(slots_[first]);
  }

  void forget_recordings() {
    for (const auto& [shape, recorded] : recorded_)
      ring().drop(recorded->id);
    recorded_.clear();
  }
  void break_chain(std::uint32_t link) {
    context_.chain.broken_link = link;
    forget_recordings();
  }

  // The tokens that the step was to find in the results of the one before it, where a later one's
  // may be by now.
  void tell_tokens(Slot& slot, std::uint32_t slot_before) {
    std::byte* const base = slot.parameters.mapped;
    std::uint32_t columns = 0;
    std::memcpy(&columns, base + k::kColumnCountWord * 4, sizeof columns);
    for (std::uint32_t i = 0; i < columns; ++i) {
      std::byte* const at = base + k::kHeaderBytes + i * sizeof(k::ColumnEntry);
      k::ColumnEntry entry{};
      std::memcpy(&entry, at, sizeof entry);
      if (entry.chosen == 0) continue;
      entry.token = last_tokens_[entry.chosen - 1 - slot_before * context_.result_rows];
      entry.chosen = 0;
      std::memcpy(at, &entry, sizeof entry);
    }
  }

  Status start_downloads(const Recorded& recorded, std::uint32_t index) {
    Slot& slot = slots_[index];
    slot.downloaded.reset();
    if (slot.outputs.empty() && !slot.may_give_up) return {};
    const gpu::CommandRing::After computed{ring().timeline(), slot.ticket};
    const auto part = [](gpu::BufferSlice slice, std::uint64_t offset, std::uint64_t bytes) {
      slice.offset += offset;
      slice.address += offset;
      if (slice.mapped != nullptr) slice.mapped += offset;
      slice.bytes = bytes;
      return slice;
    };
    // All rows each time: the same copy again.
    const std::uint64_t result_bytes = std::uint64_t{context_.result_rows} * 8;
    BULKHEAD_TRY(slot.downloaded,
                 blit().download_to(
                     slot.results, gpu::slice(context_.results, index * result_bytes, result_bytes),
                     computed));
    if (slot.tells_logprobs) {
      const std::uint64_t bytes = context_.result_rows * sizeof(k::LogprobRow);
      BULKHEAD_TRY(
          slot.downloaded,
          blit().download_to(slot.logprobs, gpu::slice(context_.logprobs, index * bytes, bytes),
                             computed));
    }
    // Neighbouring rows of logits travel together.
    const std::uint64_t row_bytes = std::uint64_t{limits_.vocabulary} * sizeof(float);
    const std::uint64_t first_row = std::uint64_t{index} * recorded.activations->logits_rows;
    std::uint64_t begin = 0;
    for (std::uint64_t row = 0; row <= slot.outputs.size(); ++row) {
      const bool wanted = row < slot.outputs.size() && !slot.outputs[row].logits.empty();
      if (wanted) continue;
      if (begin < row) {
        BULKHEAD_TRY(
            slot.downloaded,
            blit().download_to(part(slot.logits, begin * row_bytes, (row - begin) * row_bytes),
                               part(recorded.activations->logits.slice(),
                                    (first_row + begin) * row_bytes, (row - begin) * row_bytes),
                               computed));
      }
      begin = row + 1;
    }
    return {};
  }

  // Fills the slot's parameters and outputs.
  void write_parameters(const engine::Step& step, Slot& slot) {
    const ParameterLayout& layout = context_.parameter_layout;
    std::byte* const base = slot.parameters.mapped;
    const auto put = [base](std::uint64_t at, std::uint32_t value) {
      std::memcpy(base + at, &value, sizeof value);
    };
    put(k::kColumnCountWord * 4, static_cast<std::uint32_t>(step.columns.size()));

    page_starts_.clear();
    std::uint32_t pages = 0;
    for (const auto& sequence : step.sequences) {
      page_starts_.push_back(pages);
      std::memcpy(base + layout.pages + std::uint64_t{pages} * 4, sequence.data(),
                  sequence.size_bytes());
      pages += static_cast<std::uint32_t>(sequence.size());
    }
    const std::uint32_t slot_before =
        (next_slot_ + context_.slots - 1) % context_.slots * context_.result_rows;
    slot.outputs.clear();
    slot.samples = slot.tells_logprobs = false;
    slot.wanted.clear();
    for (std::uint32_t i = 0; i < step.columns.size(); ++i) {
      const engine::Column& column = step.columns[i];
      const bool by_host = column.chosen_by == engine::kByHost;
      const k::ColumnEntry entry{column.token, column.position, page_starts_[column.sequence],
                                 by_host ? 0 : 1 + slot_before + column.chosen_by};
      std::memcpy(base + k::kHeaderBytes + i * sizeof entry, &entry, sizeof entry);
      if (column.output == engine::Output::kNone) continue;
      const auto row = static_cast<std::uint32_t>(slot.outputs.size());
      put(layout.outputs + std::uint64_t{row} * 4, i);
      engine::ColumnOutput& output = slot.outputs.emplace_back();
      output.column = i;
      k::SampleChoice choice{};
      if (column.output == engine::Output::kSampled) {
        choice = device_choice(*column.choice, column.position, limits_.vocabulary);
        slot.samples = true;
      }
      slot.wanted.push_back(column.logprobs);
      if (column.logprobs >= 0) {
        choice.logprobs = static_cast<std::uint32_t>(column.logprobs) + 1;
        slot.tells_logprobs = true;
      }
      std::memcpy(base + layout.choices + row * sizeof choice, &choice, sizeof choice);
      if (column.output != engine::Output::kLogits) continue;
      const auto* const logits = reinterpret_cast<const float*>(slot.logits.mapped);
      output.logits = {logits + std::size_t{row} * limits_.vocabulary, limits_.vocabulary};
    }
    put(k::kOutputCountWord * 4, static_cast<std::uint32_t>(slot.outputs.size()));
    // In powers of two, so that the same few copies are made again and again.
    const std::uint64_t bytes = layout.pages + std::uint64_t{pages} * 4;
    slot.parameter_bytes = std::min(std::bit_ceil(bytes), layout.bytes);
  }

  Result<const Recorded*> recording(StepShape shape) {
    std::shared_ptr<Activations> activations;
    if (const auto found = recorded_.find(shape); found != recorded_.end()) {
      Recorded& before = *found->second;
      const bool valid = ring().known(before.id);
      bool same_place = true;
      if (!keeps_memory()) {
        BULKHEAD_TRY(same_place, acquire_block(context_, *parts_.memory_pool, *before.activations));
      }
      if (valid && same_place) return &before;
      activations = std::move(before.activations);
      ring().drop(before.id);
      recorded_.erase(found);
      if (!same_place) BULKHEAD_RETURN_IF_ERROR(upload_operands(*activations, blit()));
    } else {
      BULKHEAD_TRY(activations, make_activations(shape));
    }
    auto made = std::make_unique<Recorded>();
    made->activations = std::move(activations);
    made->block_address = made->activations->block_address;
    std::vector<gpu::CommandRing::Build> builds;
    made->programs.resize(context_.slots);
    for (std::uint32_t slot = 0; slot < context_.slots; ++slot) {
      const auto planning = Clock::now();
      BULKHEAD_TRY(made->programs[slot], build_step(context_, *made->activations, shape, slot));
      plan_ns_ += nanoseconds_since(planning);
      builds.push_back([this, program = &made->programs[slot]](gpu::Recorder& recorder) {
        record_step(context_, *program, recorder);
      });
    }
    BULKHEAD_TRY(made->id, ring().record_variants(std::move(builds)));
    // What the ring has dropped for it.
    std::erase_if(recorded_, [this](const auto& entry) { return !ring().known(entry.second->id); });
    const Recorded* const result = made.get();
    recorded_[shape] = std::move(made);
    return result;
  }

  // In the buffers of the step that it comes behind.
  template <typename Build>
  Result<const Recorded*> behind(std::unique_ptr<Recorded>& kept, Build build,
                                 const Recorded& step) {
    if (kept != nullptr && ring().known(kept->id) && kept->activations == step.activations &&
        kept->block_address == step.block_address) {
      return kept.get();
    }
    if (kept != nullptr) ring().drop(kept->id);
    kept.reset();
    auto made = std::make_unique<Recorded>();
    made->activations = step.activations;
    made->block_address = step.block_address;
    made->programs.resize(context_.slots);
    std::vector<gpu::CommandRing::Build> builds;
    for (std::uint32_t slot = 0; slot < context_.slots; ++slot) {
      BULKHEAD_TRY(made->programs[slot], build(context_, *made->activations, slot));
      builds.push_back([this, program = &made->programs[slot]](gpu::Recorder& recorder) {
        record_step(context_, *program, recorder);
      });
    }
    BULKHEAD_TRY(made->id,
                 ring().record_variants(std::move(builds), gpu::CommandRing::Keep::kAlways));
    kept = std::move(made);
    return kept.get();
  }

  // Steps run one after another, so the recordings that are kept share one set.
  Result<std::shared_ptr<Activations>> make_activations(StepShape shape) {
    if (shared_) return shared_;
    const std::span<const StepShape> shapes =
        keeps_memory() ? std::span<const StepShape>(shapes_) : std::span(&shape, 1);
    BULKHEAD_TRY(Activations made, acquire_activations(context_, *parts_.memory_pool, shapes));
    BULKHEAD_RETURN_IF_ERROR(upload_operands(made, blit()));
    auto result = std::make_shared<Activations>(std::move(made));
    if (keeps_memory()) shared_ = result;
    return result;
  }

  // Once the step submitted last is over.
  void give_memory_back() {
    if (keeps_memory()) return;
    if (const auto found = recorded_.find(last_shape_); found != recorded_.end())
      found->second->activations->block = {};
  }

  // In this order: the leases and buffers below go before the parts that use them.
  gpu::Optimizations parts_;
  StepContext context_;
  engine::ExecutorLimits limits_;
  std::uint32_t hidden_page_ = 0;  // written by the warm-up only; never given to a sequence
  std::string numerics_id_;
  bool keepable_ = false;
  MemoryLayout memory_layout_;
  std::vector<k::Checksum> checksums_;  // of the weights' blocks, if keepable
  TakeOverTimes take_over_times_;
  std::uint64_t steps_ = 0, computed_again_ = 0;
  std::uint64_t plan_ns_ = 0;  // making programs, which steady steps do not
  std::uint32_t wait_timeout_ms_ = 0;
  Status broken_;  // a failure on the device, which may still run: nothing more is given to it

  struct LoadTimes {
    PipelineTimes weights;
    std::uint64_t kernels_ns = 0, after_weights_ns = 0;  // compiling; of it, after the weights came
    std::uint64_t warm_up_ns = 0, save_ns = 0, total_ns = 0;  // save: of the warm-up
  };
  LoadTimes load_times_;
  std::vector<Counter> kernel_times_;  // of the last profile()
  std::uint64_t profiles_ = 0;

  std::optional<Tuning> tuning_;
  std::vector<StepShape> shapes_;
  std::shared_ptr<Activations> shared_;
  std::map<StepShape, std::unique_ptr<Recorded>> recorded_;
  std::unique_ptr<Recorded> sampling_, logprobs_;  // behind a step of any shape
  StepShape last_shape_;

  gpu::Buffer host_parameters_, host_results_, host_logits_, host_logprobs_;  // [slot]
  std::vector<Slot> slots_;  // steps take them in turn
  std::uint32_t next_slot_ = 0;
  std::size_t in_flight_ = 0;      // the slots before the next
  std::uint32_t chosen_rows_ = 0;  // outputs of the step submitted last
  std::vector<std::uint32_t> page_starts_;
  std::vector<engine::TokenId> last_tokens_;  // of the step waited for last
};

}  // namespace

Result<std::unique_ptr<engine::Executor>> make_transformer(gpu::Device& device,
                                                           const model::GgufFile& file,
                                                           const model::ModelConfig& config,
                                                           const TransformerOptions& options) {
  auto made = Transformer::create(device, file, config, options);
  if (!made.ok()) return made.error().within("loading " + file.name());
  return std::unique_ptr<engine::Executor>(*std::move(made));
}

Result<KeptMemory> keep_memory(const engine::Executor& executor) {
  const auto* const transformer = dynamic_cast<const Transformer*>(&executor);
  if (transformer == nullptr)
    return Error(ErrorCode::kInvalidArgument, "this executor has no memory to keep");
  return transformer->keep();
}

TakeOverTimes take_over_times(const engine::Executor& executor) {
  const auto* const transformer = dynamic_cast<const Transformer*>(&executor);
  return transformer != nullptr ? transformer->take_over_times() : TakeOverTimes();
}

Result<std::vector<gpu::KernelTime>> profile_step(engine::Executor& executor,
                                                  const engine::Step& step) {
  auto* const transformer = dynamic_cast<Transformer*>(&executor);
  if (transformer == nullptr)
    return Error(ErrorCode::kInvalidArgument, "this executor has no kernels to time");
  return transformer->profile(step);
}

std::uint64_t weight_bytes_read(const engine::Executor& executor) {
  const auto* const transformer = dynamic_cast<const Transformer*>(&executor);
  return transformer != nullptr ? transformer->bytes_per_step() : 0;
}

}  // namespace bulkhead::forward
