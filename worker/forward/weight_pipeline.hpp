// Brings a model's weights from its file to the device: read, packed and uploaded at the same time.
//
//   one thread    allocates the buffers, in order (25 ms a GiB on an H200)
//   some threads  read the file's pages (from the page cache, or the disk), pack rows straight into
//                 staging memory, and let go of the pages again
//   one thread    hands out staging memory piece by piece and sends what is filled to the device
//
// The host holds no more than the blit queue's staging memory at any time, however large the model.
// A matrix is cut into pieces, so that one large matrix keeps all threads busy, too.
//
// Knows neither models nor tensor types: a job is a buffer and a function that fills any part of
// it.
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
  std::string name;  // of the buffer, for messages
  std::uint64_t bytes = 0;
  // Pieces are cut at multiples of so many bytes, where a piece can be as large.
  std::uint64_t grain = 1;
  // Writes bytes [offset, offset + piece.size()) of the buffer. Several threads at once.
  std::function<void(std::uint64_t offset, std::span<std::byte> piece)> fill;
  // What `fill` reads of the file's mapping; empty: nothing.
  std::vector<std::span<const std::byte>> sources;
  // Where it goes, if the pipeline is given blocks.
  std::uint32_t block = 0;
  std::uint64_t offset = 0;
};

// Memory for several jobs.
struct PipelineBlock {
  std::uint64_t bytes = 0;
  gpu::Memory memory = gpu::Memory::kDeviceLocal;
};

// What loading was made of, in nanoseconds. Reading and packing are summed over the threads that
// did them, the others are of one thread or the device.
struct PipelineTimes {
  std::uint64_t read = 0, pack = 0;
  std::uint64_t allocate = 0;
  std::uint64_t send = 0, starved = 0;  // the sender: handing copies out; with none to hand out
  std::uint64_t upload = 0;             // the copies' own time on the device, where it is told
  std::uint64_t total = 0;              // from start to the last byte's arrival
  std::uint32_t threads = 0;
};

class WeightPipeline {
 public:
  // Lets go of a part of the file's mapping that is not needed any more; may be empty.
  using Forget = std::function<void(std::span<const std::byte>)>;
  // Called about every 100 ms during a wait, with the bytes packed so far; no longer called once
  // nothing has moved for half a minute.
  using Alive = std::function<void(std::uint64_t done, std::uint64_t total)>;

  // Starts at once. From here to finish() the blit queue is this pipeline's. The jobs' blocks rise;
  // without blocks each job has a buffer of its own.
  WeightPipeline(gpu::Device& device, gpu::BlitQueue& blit, std::vector<PipelineJob> jobs,
                 Forget forget, std::vector<PipelineBlock> blocks = {});
  // Ends it wherever it is and waits, in bounded time, until nothing is under way to the buffers.
  ~WeightPipeline();
  WeightPipeline(const WeightPipeline&) = delete;
  WeightPipeline& operator=(const WeightPipeline&) = delete;

  // Until every buffer exists: one for each block, in order, now the caller's. They must not be
  // freed before finish() or this object's end.
  Result<std::vector<gpu::Buffer>> buffers(const Alive& alive);
  // Until all is on the device.
  Status finish(const Alive& alive);
  PipelineTimes times() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::forward
