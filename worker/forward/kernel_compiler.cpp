#include "worker/forward/kernel_compiler.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "config/base/elapsed.hpp"
#include "config/base/log.hpp"

namespace bulkhead::forward {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kAliveInterval{100};
constexpr std::chrono::seconds kLongestCompilation{60};
constexpr std::size_t kMostThreads = 16;

}  // namespace

struct KernelCompiler::Impl {
  explicit Impl(gpu::Device& the_device) : device(the_device) {}

  gpu::Device& device;
  std::vector<gpu::KernelSpec> specs;
  const Clock::time_point start = Clock::now();
  Clock::time_point end = start;

  std::mutex mutex;
  std::condition_variable progress;
  std::size_t next = 0, done = 0;
  bool stop = false;
  Status failed;
  struct Taken {
    double milliseconds;
    std::string name;
  };
  std::vector<Taken> taken;
  std::vector<std::jthread> threads;

  void compile() {
    std::unique_lock lock(mutex);
    while (!stop && next < specs.size()) {
      const gpu::KernelSpec& spec = specs[next++];
      lock.unlock();
      const Clock::time_point begin = Clock::now();
      const auto made = device.make_kernel(spec);
      lock.lock();
      ++done;
      end = Clock::now();
      taken.push_back({std::chrono::duration<double, std::milli>(end - begin).count(), spec.name});
      if (!made.ok() && failed.ok()) {
        failed = made.error();
        stop = true;
      }
      progress.notify_all();
    }
  }

  // Reports which kernel is slow, because a start without compiled kernels waits for it. (All kernels are done by
  // then.)
  void tell() {
    constexpr std::size_t kLongest = 8;
    double sum = 0;
    for (const Taken& each : taken)
      sum += each.milliseconds;
    std::ranges::sort(taken, std::greater(), &Taken::milliseconds);
    std::string longest;
    for (std::size_t i = 0; i < std::min(kLongest, taken.size()); ++i)
      longest +=
          fmt::format("{}{} {:.0f}", i == 0 ? "" : ", ", taken[i].name, taken[i].milliseconds);
    spdlog::debug("{} kernels in {:.0f} ms of threads; longest: {}", taken.size(), sum, longest);
  }
};

KernelCompiler::KernelCompiler(gpu::Device& device, std::vector<gpu::KernelSpec> specs)
    : impl_(std::make_unique<Impl>(device)) {
  std::set<gpu::KernelSpec, gpu::MakesAnotherPipeline> known;
  for (gpu::KernelSpec& spec : specs) {
    if (known.insert(spec).second) impl_->specs.push_back(std::move(spec));
  }
  // The kernels that take longest must not begin last.
  std::stable_partition(impl_->specs.begin(), impl_->specs.end(),
                        [](const gpu::KernelSpec& spec) { return spec.slow_to_compile; });
  const std::size_t count = std::min<std::size_t>(
      {impl_->specs.size(), std::max(std::thread::hardware_concurrency(), 1U), kMostThreads});
  for (std::size_t i = 0; i < count; ++i)
    impl_->threads.emplace_back([impl = impl_.get()] { impl->compile(); });
}

KernelCompiler::~KernelCompiler() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->threads.clear();
}

Status KernelCompiler::finish(
    const std::function<void(std::uint64_t done, std::uint64_t total)>& alive) {
  const Clock::time_point begin = Clock::now();
  std::unique_lock lock(impl_->mutex);
  const auto over = [this] { return !impl_->failed.ok() || impl_->done == impl_->specs.size(); };
  while (!impl_->progress.wait_for(lock, kAliveInterval, over)) {
    const std::uint64_t done = impl_->done;
    // A driver that takes so long for one kernel hangs. Without signs of life, the daemon ends this process.
    const bool headway = Clock::now() - std::max(impl_->end, begin) < kLongestCompilation;
    lock.unlock();
    if (alive && headway) alive(done, impl_->specs.size());
    lock.lock();
  }
  if (impl_->failed.ok()) impl_->tell();
  return impl_->failed;
}

std::uint64_t KernelCompiler::nanoseconds() const {
  const std::lock_guard lock(impl_->mutex);
  return nanoseconds_between(impl_->start, impl_->end);
}

}  // namespace bulkhead::forward
