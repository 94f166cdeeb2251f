#include "worker/forward/step_recordings.hpp"

#include <cstddef>
#include <span>
#include <utility>

#include "worker/forward/load_figures.hpp"

namespace bulkhead::forward {

using gpu::CommandRing;

// Makes a program for each slot with build(activations, slot), and records all of them together.
template <typename Build>
Result<std::unique_ptr<StepRecording>> StepRecordings::record(
    std::shared_ptr<Activations> activations, CommandRing::Keep keep, const Build& build) {
  auto made = std::make_unique<StepRecording>();
  made->activations = std::move(activations);
  made->block_address = made->activations->block_address;
  made->programs.resize(context_.slots);
  std::vector<CommandRing::Build> builds;
  for (std::uint32_t slot = 0; slot < context_.slots; ++slot) {
    const auto planning = Clock::now();
    BULKHEAD_TRY(made->programs[slot], build(*made->activations, slot));
    plan_ns_ += nanoseconds_since(planning);
    builds.push_back([this, program = &made->programs[slot]](gpu::Recorder& recorder) {
      record_step(context_, *program, recorder);
    });
  }
  BULKHEAD_TRY(made->id, parts_.command_ring->record_variants(std::move(builds), keep));
  return made;
}

Result<const StepRecording*> StepRecordings::get(StepShape shape) {
  CommandRing& ring = *parts_.command_ring;
  std::shared_ptr<Activations> activations;
  if (const auto found = recorded_.find(shape); found != recorded_.end()) {
    StepRecording& before = *found->second;
    const bool valid = ring.known(before.id);
    bool same_place = true;
    if (!keeps_memory()) {
      BULKHEAD_TRY(same_place, acquire_block(context_, *parts_.memory_pool, *before.activations));
    }
    if (valid && same_place) return &before;
    activations = std::move(before.activations);
    ring.drop(before.id);
    recorded_.erase(found);
    if (!same_place) BULKHEAD_RETURN_IF_ERROR(upload_operands(*activations, *parts_.blit_queue));
  } else {
    BULKHEAD_TRY(activations, make_activations(shape));
  }
  // The ring has room for one recording of each number of columns.
  const bool plain = !shape.chooses_later && shape.positions == Positions::kAny;
  const auto keep = plain ? CommandRing::Keep::kInRing : CommandRing::Keep::kAlways;
  BULKHEAD_TRY(auto made, record(std::move(activations), keep,
                                 [&](const Activations& buffers, std::uint32_t slot) {
                                   return build_step(context_, buffers, shape, slot);
                                 }));
  // Forgets recordings that the ring has dropped to make room.
  std::erase_if(recorded_, [&ring](const auto& entry) { return !ring.known(entry.second->id); });
  const StepRecording* const result = made.get();
  recorded_[shape] = std::move(made);
  return result;
}

// The program uses the buffers of the step that precedes it.
Result<const StepRecording*> StepRecordings::follower(const StepRecording& step,
                                                      const OutputWishes& wishes) {
  if (wishes == OutputWishes{}) return nullptr;
  CommandRing& ring = *parts_.command_ring;
  std::unique_ptr<StepRecording>& kept = followers_[wishes];
  if (kept != nullptr && ring.known(kept->id) && kept->activations == step.activations &&
      kept->block_address == step.block_address) {
    return kept.get();
  }
  if (kept != nullptr) ring.drop(kept->id);
  kept.reset();
  BULKHEAD_TRY(kept, record(step.activations, CommandRing::Keep::kAlways,
                            [&](const Activations& buffers, std::uint32_t slot) {
                              return build_followers(context_, buffers, wishes, slot);
                            }));
  return kept.get();
}

Result<std::shared_ptr<Activations>> StepRecordings::make_activations(StepShape shape) {
  if (shared_) return shared_;
  const std::span<const StepShape> shapes =
      keeps_memory() ? std::span<const StepShape>(shapes_) : std::span(&shape, 1);
  BULKHEAD_TRY(Activations made, acquire_activations(context_, *parts_.memory_pool, shapes));
  BULKHEAD_RETURN_IF_ERROR(upload_operands(made, *parts_.blit_queue));
  auto result = std::make_shared<Activations>(std::move(made));
  if (keeps_memory()) shared_ = result;
  return result;
}

void StepRecordings::forget(std::uint32_t columns) {
  std::erase_if(recorded_, [&](const auto& entry) {
    const bool forgets = entry.first.columns == columns;
    if (forgets) parts_.command_ring->drop(entry.second->id);
    return forgets;
  });
}

void StepRecordings::forget_all() {
  for (const auto& [shape, recorded] : recorded_)
    parts_.command_ring->drop(recorded->id);
  recorded_.clear();
}

void StepRecordings::give_memory_back(StepShape shape) {
  if (keeps_memory()) return;
  if (const auto found = recorded_.find(shape); found != recorded_.end())
    found->second->activations->block = {};
}

}  // namespace bulkhead::forward
