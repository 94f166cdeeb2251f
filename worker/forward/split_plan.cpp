#include "worker/forward/split_plan.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "gpu/kernels/kv_layout.hpp"
#include "worker/forward/cache_growth.hpp"
#include "worker/forward/mapping.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/forward/model_plan.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// When layers are divided among devices, the KV cache counts as this many positions, unless a longer context is asked
// for.
constexpr std::uint32_t kCountedPositions = 8192;

class Planner {
 public:
  Planner(std::span<gpu::Device* const> devices, const model::GgufFile& file,
          const model::ModelGraph& graph, const TransformerOptions& options)
      : devices_(devices), file_(file), graph_(graph), options_(options) {
    for (gpu::Device* const device : devices) {
      mappings_.push_back(mapping_of(*device, options));
      rooms_.push_back(room_on(*device));
      rooms_.back().beside_others = options.beside_others;
      const auto same = std::ranges::count_if(devices, [&](const gpu::Device* other) {
        return other->info().index == device->info().index;
      });
      rooms_.back().free_bytes /= static_cast<std::uint64_t>(same);
      whole_memories_.push_back(device->info().device_memory_bytes /
                                static_cast<std::uint64_t>(same));
    }
  }

  Result<SplitPlan> plan(const std::vector<StageLayers>& exported_layers) {
    SplitPlan made;
    made.sizes.states = state_slots(graph_, options_.engine);
    made.sizes.drafts = most_drafts(graph_, options_.engine);
    made.layers = exported_layers;
    if (exported_layers.empty()) {
      BULKHEAD_TRY(made.layers, choose_layers(made.sizes.states));
    } else if (!is_split(exported_layers)) {
      return not_as_expected("its layers are others");
    }
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      BULKHEAD_TRY(const ModelPlan whole, plan_model(graph_, file_, mappings_[i], kv()));
      const StageLayers layers = made.layers[i];
      made.graphs.push_back(stage_graph(graph_, layers, whole.prepared[layers.first]));
    }
    if (exported_layers.empty()) BULKHEAD_RETURN_IF_ERROR(size_caches(made));
    return made;
  }

 private:
  k::KvFormat kv() const { return kv_format(options_.engine.kv_type); }
  std::uint32_t asked_context() const {
    return options_.context != 0 ? options_.context : graph_.context;
  }

  bool is_split(const std::vector<StageLayers>& stages) const {
    const std::vector<std::string> found = obstacles(graph_);
    std::uint32_t next = 0;
    for (const StageLayers& layers : stages) {
      if (layers.first != next || layers.end <= layers.first || layers.end > graph_.layers.size() ||
          (next > 0 && !found[next].empty()))
        return false;
      next = layers.end;
    }
    return next == graph_.layers.size() && stages.size() == devices_.size();
  }

  // Counts only on the first device, because the same weights take about as much on others.
  Result<std::vector<StageLayers>> choose_layers(std::uint32_t states) const {
    const auto count = static_cast<std::uint32_t>(graph_.layers.size());
    const std::uint64_t positions =
        std::max(options_.context, std::min(kCountedPositions, graph_.context));
    PartSizes sizes;
    for (std::uint32_t i = 0; i < count; ++i) {
      model::ModelGraph part = stage_graph(graph_, {i, i + 1}, false);
      part.start = model::StreamStart::kBrought;
      part.makes_logits = false;
      part.lookups.clear();
      BULKHEAD_TRY(std::uint64_t bytes, bytes_of(part));
      bytes += kv_need(part, kv()).bytes(positions);
      for (const model::StateStore& store : part.states)
        bytes += (std::uint64_t{states} + 1) * state_bytes(store);
      sizes.layers.push_back(bytes);
    }
    model::ModelGraph ends = stage_graph(graph_, {0, 0}, false);
    BULKHEAD_TRY(sizes.embedding, bytes_of(ends));
    ends = stage_graph(graph_, {count, count}, false);
    BULKHEAD_TRY(sizes.output, bytes_of(ends));
    sizes.output +=
        std::uint64_t{most_outputs(options_.engine)} * graph_.vocabulary * sizeof(float);
    std::vector<std::uint64_t> free;
    for (const CacheRoom& room : rooms_)
      free.push_back(room.free_bytes);
    // A successor must choose the same layers although others have taken memory. So free memory counts only if the
    // layers would not fit otherwise.
    BULKHEAD_TRY(auto by_size, share_out_layers(sizes, obstacles(graph_), whole_memories_));
    if (fits(by_size, sizes, free)) return by_size;
    return share_out_layers(sizes, obstacles(graph_), free);
  }

  Result<std::uint64_t> bytes_of(const model::ModelGraph& part) const {
    BULKHEAD_TRY(const ModelPlan plan, plan_model(part, file_, mappings_.front(), kv()));
    const std::vector<std::uint64_t> sizes = weight_sizes(part, plan, asked_context());
    return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  }

  // engine.kv_cache_mb and kv_cache_max_mb are for the whole model, and each stage gets its part.
  config::EngineSettings settings_of(const model::ModelGraph& stage) const {
    config::EngineSettings engine = options_.engine;
    const std::uint64_t all = std::max<std::uint64_t>(kv_bytes_per_token(graph_, kv()), 1);
    for (std::uint32_t* const megabytes : {&engine.kv_cache_mb, &engine.kv_cache_max_mb}) {
      const std::uint64_t asked = *megabytes * kv_bytes_per_token(stage, kv());
      *megabytes = static_cast<std::uint32_t>((asked + all - 1) / all);
    }
    return engine;
  }

  // All stages have as many pages as the device with the least room holds, and grow together.
  Status size_caches(SplitPlan& made) const {
    CacheSize& least = made.sizes.cache;
    std::vector<GrowingPart> parts;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const model::ModelGraph& stage = made.graphs[i];
      const std::vector<StepShape> shapes = shapes_on(rooms_[i].kind, stage, options_);
      BULKHEAD_TRY(const ModelPlan plan, plan_model(stage, file_, mappings_[i], kv()));
      const MemoryNeed need = memory_need(stage, plan, mappings_[i], kv(), shapes,
                                          {asked_context(), 1}, made.sizes.states);
      const std::uint32_t ahead =
          shapes.back().columns * static_cast<std::uint32_t>(devices_.size());
      auto size = plan_cache(rooms_[i], stage, settings_of(stage), options_.context, ahead, need);
      if (!size.ok()) {
        return size.error().within("models[].split: layers " +
                                   std::to_string(made.layers[i].first) + " to " +
                                   std::to_string(made.layers[i].end - 1));
      }
      const Wanted wanted =
          wanted_pages(need.kv, asked_context(), options_.engine.max_batch, ahead);
      parts.push_back({rooms_[i], &stage, settings_of(stage), wanted, fixed_need(rooms_[i], need)});
      if (i == 0) {
        least = *size;
        continue;
      }
      least.context = std::min(least.context, size->context);
      least.pages = std::min(least.pages, size->pages);
      if (least.window_pages == 0 || size->window_pages == 0)
        least.window_pages = std::max(least.window_pages, size->window_pages);
      else
        least.window_pages = std::min(least.window_pages, size->window_pages);
    }
    least.window_pages = std::min(least.window_pages, least.pages);
    let_grow(parts, least);
    return {};
  }

  std::span<gpu::Device* const> devices_;
  const model::GgufFile& file_;
  const model::ModelGraph& graph_;
  const TransformerOptions& options_;
  std::vector<k::Mapping> mappings_;
  std::vector<CacheRoom> rooms_;
  std::vector<std::uint64_t> whole_memories_;  // each device's, shared like its free memory
};

}  // namespace

std::vector<StepShape> shapes_on(gpu::DeviceKind kind, const model::ModelGraph& graph,
                                 const TransformerOptions& options) {
  return step_shapes(widest_step(graph, options.engine, kind == gpu::DeviceKind::kCpu),
                     widest_mixed_step(options.engine),
                     graph.makes_logits ? most_outputs(options.engine) : 0,
                     options.gpu.command_buffer_ring.ring_size);
}

Result<SplitPlan> plan_split(std::span<gpu::Device* const> devices, const model::GgufFile& file,
                             const model::ModelGraph& graph, const TransformerOptions& options,
                             const std::vector<StageLayers>& exported_layers) {
  return Planner(devices, file, graph, options).plan(exported_layers);
}

}  // namespace bulkhead::forward
