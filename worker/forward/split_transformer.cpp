#include "worker/forward/split_transformer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "config/base/log.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/forward/split_exported.hpp"
#include "worker/forward/split_facts.hpp"
#include "worker/forward/split_plan.hpp"
#include "worker/forward/step_check.hpp"
#include "worker/forward/step_copy.hpp"

namespace bulkhead::forward {
namespace {

class SplitTransformer final : public Transformer {
 public:
  static Result<std::unique_ptr<Transformer>> create(std::span<gpu::Device* const> devices,
                                                     const model::GgufFile& file,
                                                     const model::ModelGraph& graph,
                                                     const TransformerOptions& options) {
    std::unique_ptr<SplitTransformer> self(new SplitTransformer);
    BULKHEAD_RETURN_IF_ERROR(self->load(devices, file, graph, options));
    return std::unique_ptr<Transformer>(std::move(self));
  }

  const engine::ExecutorLimits& limits() const override { return limits_; }
  Status reserve_logits(std::uint32_t outputs) override { return last().reserve_logits(outputs); }

  Status reserve_adjustments(std::uint64_t edits) override {
    return last().reserve_adjustments(edits);
  }

  // All stages grow, or none. No step in flight has a page of the slab, whichever stage it has reached.
  bool grow(std::uint32_t slab) override {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (!has_slab(*stages_[i], slab) || stages_[i]->grow(slab)) continue;
      for (std::size_t before = 0; before < i; ++before) {
        if (has_slab(*stages_[before], slab)) stages_[before]->shrink(slab);
      }
      return false;
    }
    return true;
  }
  void shrink(std::uint32_t slab) override {
    for (const auto& stage : stages_) {
      if (has_slab(*stage, slab)) stage->shrink(slab);
    }
  }
  std::vector<std::uint32_t> present_slabs() const override {
    std::vector<std::uint32_t> present;
    for (std::uint32_t slab = 0; slab < limits_.slab_numbers(); ++slab) {
      if (std::ranges::all_of(stages_, [&](const auto& stage) { return is_present(*stage, slab); }))
        present.push_back(slab);
    }
    return present;
  }
  Result<std::vector<ExportedSlab>> export_slab(std::uint32_t slab) const override {
    std::vector<ExportedSlab> pieces;
    const auto count = static_cast<std::uint32_t>(stages_.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      if (!has_slab(*stages_[i], slab)) continue;
      BULKHEAD_TRY(std::vector<ExportedSlab> own, stages_[i]->export_slab(slab));
      for (ExportedSlab& piece : own) {
        piece.piece = slab * count + i;
        pieces.push_back(std::move(piece));
      }
    }
    return pieces;
  }
  std::uint32_t slab_of_piece(std::uint32_t piece) const override {
    return piece / static_cast<std::uint32_t>(stages_.size());
  }

  Status submit(const engine::Step& step) override {
    BULKHEAD_RETURN_IF_ERROR(broken_);
    if (submitted_ - waited_ == stages_.size())
      return Error(ErrorCode::kInternal,
                   "a step was submitted while as many as can be are in flight");
    BULKHEAD_RETURN_IF_ERROR(check_step(step, limits_, 0));
    BULKHEAD_RETURN_IF_ERROR(keep(make_room(0)));
    copies_[submitted_ % copies_.size()].take(step);
    ++submitted_;
    return keep(enter(0, submitted_ - 1));
  }

  // Gives the adjustments to the last stage. If the last stage does not have the step yet, the copy of the step keeps
  // them for it.
  Status choose(std::span<const engine::Adjustment> adjustments) override {
    BULKHEAD_RETURN_IF_ERROR(broken_);
    if (submitted_ == waited_) return Error(ErrorCode::kInternal, "no step is in flight");
    copies_[(submitted_ - 1) % copies_.size()].take_adjustments(adjustments);
    return at_.back() == submitted_ - 1 ? keep(last().choose(adjustments)) : Status();
  }
  Status flush() override { return keep(last().flush()); }

  Result<std::span<const engine::ColumnOutput>> wait() override {
    if (submitted_ == waited_) return Error(ErrorCode::kInternal, "no step is in flight");
    BULKHEAD_RETURN_IF_ERROR(broken_);
    std::size_t stage = 0;
    while (at_[stage] != waited_)
      ++stage;
    for (; stage + 1 < stages_.size(); ++stage)
      BULKHEAD_RETURN_IF_ERROR(keep(hand_on(stage)));
    auto outputs = last().wait();
    if (!outputs.ok()) broken_ = outputs.error();
    at_.back().reset();
    ++waited_;
    return outputs;
  }

  Status start_sums(std::span<const engine::PageIndex> pages, std::uint64_t weight_bytes) override {
    if (lots_made_ - lots_ended_ == kSumsInFlight)
      return Error(ErrorCode::kInternal, "more lots of sums than can be in flight");
    Lot& lot = lots_[lots_made_ % lots_.size()];
    lot.pages.assign(pages.begin(), pages.end());
    lot.weight_bytes = weight_bytes;
    lot.after = submitted_;
    ++lots_made_;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage)
      BULKHEAD_RETURN_IF_ERROR(start_lots(stage));
    return {};
  }

  Status change_bit(engine::PageIndex page) override { return stages_[0]->change_bit(page); }
  Result<std::span<const engine::PageSum>> finish_sums() override {
    sums_.assign(lots_[lots_ended_ % lots_.size()].pages.size(), {});
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      // The stage lacks steps that were submitted before the lot, and may get them only after another wait(). They are
      // in flight, so they do not write to the lot's pages.
      if (lots_started_[stage] == lots_ended_) BULKHEAD_RETURN_IF_ERROR(start_lot(stage));
      BULKHEAD_TRY(const std::span<const engine::PageSum> own, stages_[stage]->finish_sums());
      for (std::size_t i = 0; i < sums_.size(); ++i)
        add_sum(own[i], sums_[i]);
    }
    ++lots_ended_;
    return std::span<const engine::PageSum>(sums_);
  }

  std::string device_name() const override { return joined_names(views()); }
  std::string numerics_id() const override { return numerics_id_; }
  std::uint64_t weight_bytes() const override {
    return sum_of([](const Transformer& stage) { return stage.weight_bytes(); });
  }
  std::uint64_t weight_bytes_read() const override {
    return sum_of([](const Transformer& stage) { return stage.weight_bytes_read(); });
  }
  std::vector<FigureValue> counters() const override { return joined_counters(views()); }
  std::vector<Optimization> optimizations() const override { return joined_parts(views()); }

  Status profile() override {
    for (const auto& stage : stages_)
      BULKHEAD_RETURN_IF_ERROR(keep(stage->profile()));
    return {};
  }
  Result<std::vector<gpu::KernelTime>> profile_step(const engine::Step&) override {
    return Error(ErrorCode::kUnsupported, "a model that is split over devices has no profile");
  }
  std::span<float> brought_rows() override { return {}; }
  ComputedRows computed_rows() override { return {}; }

  Result<ExportedMemory> export_memory() const override {
    std::vector<ExportedStage> exported;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      BULKHEAD_TRY(ExportedMemory memory, stages_[i]->export_memory());
      exported.push_back({layers_[i], std::move(memory)});
    }
    return join_exported(std::move(exported));
  }
  ImportTimes import_times() const override {
    ImportTimes times;
    for (const auto& stage : stages_) {
      times.import_ns += stage->import_times().import_ns;
      times.check_ns += stage->import_times().check_ns;
    }
    return times;
  }
  Status check_weights_again() override {
    for (const auto& stage : stages_)
      BULKHEAD_RETURN_IF_ERROR(stage->check_weights_again());
    return {};
  }

 private:
  // Pages to sum. Each stage computes the sums before it gets a step that was submitted after the lot. A stage first
  // gets the steps that were submitted before the lot, unless finish_sums() is called before that.
  struct Lot {
    std::vector<engine::PageIndex> pages;
    std::uint64_t weight_bytes = 0;
    std::uint64_t after = 0;  // the number of steps submitted before it
  };

  SplitTransformer() = default;

  Status load(std::span<gpu::Device* const> devices, const model::GgufFile& file,
              const model::ModelGraph& graph, const TransformerOptions& options) {
    TransformerOptions own = options;
    own.engine = with_sizes(options.engine, file, graph, size_of_all(devices));
    std::vector<ExportedStage> exported;
    if (options.predecessor != nullptr) {
      BULKHEAD_TRY(exported, part_exported(*options.predecessor, devices.size()));
      for (const ExportedStage& stage : exported)
        layers_.push_back(stage.layers);
    }
    BULKHEAD_TRY(const SplitPlan plan, plan_split(devices, file, graph, own, layers_));
    layers_ = plan.layers;
    own.shared = plan.sizes;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const std::string name = fmt::format("layers {} to {}", layers_[i].first, layers_[i].end - 1);
      own.predecessor = exported.empty() ? nullptr : &exported[i].memory;
      if (options.progress) {
        own.progress = [&](const std::string& what, std::uint64_t done, std::uint64_t total) {
          options.progress(name + ": " + what, done, total);
        };
      }
      auto stage = make_transformer(*devices[i], file, plan.graphs[i], own);
      if (!stage.ok()) return stage.error().within(name);
      spdlog::info("{} on {}: {} MiB", name, devices[i]->info().name,
                   (*stage)->weight_bytes() >> 20);
      stages_.push_back(*std::move(stage));
    }
    limits_ = joined_limits(views());
    drop_partial_slabs();
    numerics_id_ = joined_id(views(), layers_);
    at_.resize(stages_.size());
    entered_.resize(stages_.size());
    lots_started_.resize(stages_.size());
    copies_.resize(stages_.size() + 1);
    return {};
  }

  // A stage whose layers have no windows has no slabs of window pages, which have the last numbers.
  static bool has_slab(const Transformer& stage, std::uint32_t slab) {
    return slab < stage.limits().slab_numbers();
  }
  static bool is_present(const Transformer& stage, std::uint32_t slab) {
    return !has_slab(stage, slab) || std::ranges::binary_search(stage.present_slabs(), slab);
  }
  // Gives back slabs of a predecessor that not all stages could import.
  void drop_partial_slabs() {
    const std::vector<std::uint32_t> whole = present_slabs();
    for (const auto& stage : stages_) {
      for (const std::uint32_t slab : stage->present_slabs()) {
        if (!std::ranges::binary_search(whole, slab)) stage->shrink(slab);
      }
    }
  }

  static DeviceSize size_of_all(std::span<gpu::Device* const> devices) {
    DeviceSize size;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const gpu::DeviceInfo& info = devices[i]->info();
      size.cpu |= info.kind == gpu::DeviceKind::kCpu;
      const bool counted = std::ranges::any_of(
          devices.first(i), [&](gpu::Device* other) { return other->info().index == info.index; });
      if (!counted) size.memory_bytes += info.device_memory_bytes;
    }
    return size;
  }

  Transformer& last() { return *stages_.back(); }
  Stages views() const {
    Stages all;
    for (const auto& stage : stages_)
      all.push_back(stage.get());
    return all;
  }
  template <typename Of>
  std::uint64_t sum_of(const Of& of) const {
    std::uint64_t sum = 0;
    for (const auto& stage : stages_)
      sum += of(*stage);
    return sum;
  }
  // After a failure, no device gets further work.
  Status keep(Status status) {
    if (!status.ok() && broken_.ok()) broken_ = status;
    return status;
  }

  // Fewer steps are in flight than there are stages, so after a full stage some stage is free or becomes free.
  Status make_room(std::size_t stage) { return at_[stage] ? hand_on(stage) : Status(); }

  // Waits for the stage's step and gives it to the next stage.
  Status hand_on(std::size_t stage) {
    if (stage + 1 == stages_.size())
      return Error(ErrorCode::kInternal, "no call waited for an earlier step");
    BULKHEAD_TRY([[maybe_unused]] const auto none, stages_[stage]->wait());
    BULKHEAD_RETURN_IF_ERROR(make_room(stage + 1));
    const std::uint64_t step = *std::exchange(at_[stage], std::nullopt);
    copy_rows(stage, copies_[step % copies_.size()].columns());
    return enter(stage + 1, step);
  }

  void copy_rows(std::size_t stage, std::uint32_t columns) {
    const ComputedRows from = stages_[stage]->computed_rows();
    const std::span<float> to = stages_[stage + 1]->brought_rows();
    const std::size_t width = limits_.embedding;
    if (from.stride == width) {
      std::memcpy(to.data(), from.floats.data(), columns * width * sizeof(float));
      return;
    }
    for (std::size_t i = 0; i < columns; ++i)
      std::memcpy(to.data() + i * width, from.floats.data() + i * from.stride,
                  width * sizeof(float));
  }

  Status enter(std::size_t stage, std::uint64_t step) {
    const StepCopy& copy = copies_[step % copies_.size()];
    const bool ends = stage + 1 == stages_.size();
    BULKHEAD_RETURN_IF_ERROR(stages_[stage]->submit(ends ? copy.whole() : copy.without_outputs()));
    if (ends && !copy.adjustments().empty()) {
      BULKHEAD_RETURN_IF_ERROR(last().choose(copy.adjustments()));
      BULKHEAD_RETURN_IF_ERROR(last().flush());
    }
    at_[stage] = step;
    ++entered_[stage];
    return start_lots(stage);
  }

  // Starts the lots whose steps the stage has got.
  Status start_lots(std::size_t stage) {
    while (lots_started_[stage] < lots_made_ &&
           lots_[lots_started_[stage] % lots_.size()].after <= entered_[stage])
      BULKHEAD_RETURN_IF_ERROR(start_lot(stage));
    return {};
  }

  Status start_lot(std::size_t stage) {
    const Lot& lot = lots_[lots_started_[stage]++ % lots_.size()];
    return stages_[stage]->start_sums(lot.pages, lot.weight_bytes / stages_.size() + 1);
  }

  std::vector<StageLayers> layers_;
  std::vector<std::unique_ptr<Transformer>> stages_;
  engine::ExecutorLimits limits_;
  std::string numerics_id_;
  Status broken_;
  // Steps count from 0. A copy is kept until its step has ended.
  std::uint64_t submitted_ = 0, waited_ = 0;
  std::vector<StepCopy> copies_;
  std::vector<std::optional<std::uint64_t>> at_;  // the step that each stage has now
  std::vector<std::uint64_t> entered_;            // how many steps each stage has got so far
  std::array<Lot, kSumsInFlight> lots_;
  std::uint64_t lots_made_ = 0, lots_ended_ = 0;
  std::vector<std::uint64_t> lots_started_;  // for each stage
  std::vector<engine::PageSum> sums_;
};

}  // namespace

Result<std::unique_ptr<Transformer>> make_split_transformer(std::span<gpu::Device* const> devices,
                                                            const model::GgufFile& file,
                                                            const model::ModelGraph& graph,
                                                            const TransformerOptions& options) {
  auto made = SplitTransformer::create(devices, file, graph, options);
  if (!made.ok()) return made.error().within("splitting " + file.name());
  return made;
}

}  // namespace bulkhead::forward
