// Compiles a model's kernels on several threads while its weights are loaded, because a driver takes tens of
// milliseconds for each. gpu::Device keeps them, so that the programs of steps, made afterwards, find them compiled.
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
  // Starts to compile at once, first the kernels that are slow to compile, then the others in the given order. Equal
  // specs are compiled once.
  KernelCompiler(gpu::Device& device, std::vector<gpu::KernelSpec> specs);
  // Starts no more kernels, and waits for those that are being compiled.
  ~KernelCompiler();
  KernelCompiler(const KernelCompiler&) = delete;
  KernelCompiler& operator=(const KernelCompiler&) = delete;

  // Waits until all are compiled. Calls `alive` about every 100 ms with the number of finished kernels and of all
  // kernels, but stops calling it once a single kernel has taken a minute. Returns the first failure, if any.
  Status finish(const std::function<void(std::uint64_t done, std::uint64_t total)>& alive);
  std::uint64_t nanoseconds() const;  // from the start to the end of the last one; call it after finish()

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::forward
