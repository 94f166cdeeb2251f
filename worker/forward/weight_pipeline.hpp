// Moves a model's weights from its file to the device: it reads, packs and uploads them at the same time.
//
//   one thread    allocates the buffers, in order (25 ms a GiB on an H200)
//   some threads  read the file's pages (from the page cache, or the disk), pack rows straight into
//                 staging memory, and release the pages again
//   one thread    hands out staging memory piece by piece and sends the filled pieces to the device
//
// The host never holds more than the blit queue's staging memory, however large the model is. Each matrix is cut into
// pieces, so that a single large matrix keeps all threads busy, too.
//
// It depends neither on models nor on tensor types: a job is a buffer and a function that fills any
// part of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/blit_queue.hpp"
#include "gpu/device.hpp"

namespace bulkhead::forward {

struct PipelineJob {
  std::string name;  // the buffer's name, for messages
  std::uint64_t bytes = 0;
  // Pieces are cut at multiples of this many bytes, if a piece can be as large.
  std::uint64_t grain = 1;
  // Writes bytes [offset, offset + piece.size()) of the buffer. Several threads call it at once.
  std::function<void(std::uint64_t offset, std::span<std::byte> piece)> fill;
  // The parts of the file's mapping that `fill` reads; may be empty.
  std::vector<std::span<const std::byte>> sources;
  // The job's block, if the pipeline is given blocks.
  std::uint32_t block = 0;
  std::uint64_t offset = 0;
};

// The memory of several jobs.
struct PipelineBlock {
  std::uint64_t bytes = 0;
  gpu::Memory memory = gpu::Memory::kDeviceLocal;
};

// How long the parts of loading took, in nanoseconds. The times for reading and packing are sums over the threads;
// each other time belongs to one thread or to the device.
struct PipelineTimes {
  std::uint64_t read = 0, pack = 0;
  std::uint64_t allocate = 0;
  std::uint64_t send = 0, starved = 0;  // the sender: time to send copies; time without anything to send
  std::uint64_t upload = 0;             // the copies' time on the device, if it is known
  std::uint64_t total = 0;              // from start to the last byte's arrival
  std::uint32_t threads = 0;
};

class WeightPipeline {
 public:
  // Releases a part of the file's mapping that is no longer needed; may be empty.
  using Forget = std::function<void(std::span<const std::byte>)>;
  // Called about every 100 ms during a wait, with the bytes packed so far. It is no longer called once nothing has
  // moved for half a minute.
  using Alive = std::function<void(std::uint64_t done, std::uint64_t total)>;

  // Starts at once. Until finish() only this pipeline may use the blit queue. The jobs' blocks must be in rising
  // order; without blocks each job gets a buffer of its own.
  WeightPipeline(gpu::Device& device, gpu::BlitQueue& blit, std::vector<PipelineJob> jobs,
                 Forget forget, std::vector<PipelineBlock> blocks = {});
  // Stops the pipeline and waits, in bounded time, until nothing is under way to the buffers.
  ~WeightPipeline();
  WeightPipeline(const WeightPipeline&) = delete;
  WeightPipeline& operator=(const WeightPipeline&) = delete;

  // Waits until every buffer exists, and returns them to the caller: one for each block, in order. The caller must
  // not free them before finish() or before this object is destroyed.
  Result<std::vector<gpu::Buffer>> buffers(const Alive& alive);
  // Waits until everything is on the device.
  Status finish(const Alive& alive);
  PipelineTimes times() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::forward
