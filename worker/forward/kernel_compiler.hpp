// Compiles a model's kernels on several threads while its weights are on their way: a driver takes
// tens of milliseconds for each. Who makes a step's program afterwards finds them made
// (gpu::Device keeps them).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::forward {

class KernelCompiler {
 public:
  // Starts at once, with those that are slow to compile, then in the order given. Equal specs are
  // compiled once.
  KernelCompiler(gpu::Device& device, std::vector<gpu::KernelSpec> specs);
  // Waits for the kernels that are being compiled, starts no more.
  ~KernelCompiler();
  KernelCompiler(const KernelCompiler&) = delete;
  KernelCompiler& operator=(const KernelCompiler&) = delete;

  // Until all are made. `alive` is called about every 100 ms meanwhile with kernels done and in
  // all, but no more once a single one has taken a minute. The first failure, if any.
  Status finish(const std::function<void(std::uint64_t done, std::uint64_t total)>& alive);
  std::uint64_t nanoseconds() const;  // from the start to the last one's end; after finish()

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::forward
