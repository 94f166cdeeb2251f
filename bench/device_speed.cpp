#include "bench/device_speed.hpp"

#include <algorithm>
#include <cstdio>

#include "gpu/kernels/kernels.hpp"

namespace bulkhead::bench {

Result<double> read_bandwidth(gpu::Device& device) {
  namespace k = gpu::kernels;
  const bool cpu = device.info().kind == gpu::DeviceKind::kCpu;
  const std::uint64_t bytes =
      cpu ? std::uint64_t{64} << 20
          : std::min({std::uint64_t{4} << 30, device.free_memory_bytes() / 4,
                      device.info().max_allocation_bytes}) /
                256 * 256;
  BULKHEAD_TRY(const gpu::Buffer source,
               device.allocate(bytes, gpu::Memory::kDeviceLocal, "bandwidth"));
  BULKHEAD_TRY(const gpu::Buffer sink,
               device.allocate(256, gpu::Memory::kDeviceLocal, "bandwidth"));
  BULKHEAD_TRY(const auto ring, gpu::CommandRing::create(device, {}, true, 60000));
  BULKHEAD_TRY(const gpu::Kernel kernel, device.make_kernel(k::read_bandwidth()));
  const k::ReadBandwidthPush push{source.address(), sink.address(),
                                  static_cast<std::uint32_t>(bytes / 16), 16};
  const std::uint64_t per_group =
      std::uint64_t{k::kReadBandwidthInvocations} * push.per_invocation * 16;
  const auto groups = static_cast<std::uint32_t>((bytes + per_group - 1) / per_group);
  BULKHEAD_TRY(const auto id, ring->record([&](gpu::Recorder& recorder) {
    recorder.dispatch(kernel, gpu::push_bytes(push), groups, 1, 1, bytes);
  }));
  std::vector<double> rates;
  for (int pass = 0; pass < (cpu ? 3 : 12); ++pass) {
    BULKHEAD_TRY(const auto times, ring->profile(id));
    double microseconds = 0;
    for (const gpu::KernelTime& time : times)
      microseconds += time.microseconds;
    if (pass > 0 && microseconds > 0)
      rates.push_back(static_cast<double>(bytes) / microseconds * 1e6);
  }
  if (rates.empty()) return Error(ErrorCode::kUnsupported, "the device has no timestamps");
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

nlohmann::json kernel_table(std::vector<gpu::KernelTime> times, double bandwidth) {
  std::stable_sort(times.begin(), times.end(),
                   [](const auto& a, const auto& b) { return a.microseconds > b.microseconds; });
  double all = 0;
  for (const gpu::KernelTime& time : times)
    all += time.microseconds;
  std::printf("    kernels of one step, %.0f us in all:\n", all);
  std::printf("    %-20s %5s %12s %7s %9s %10s %9s\n", "kernel", "calls", "us", "share", "MB",
              "GB/s", "of limit");
  nlohmann::json table = nlohmann::json::array();
  for (const gpu::KernelTime& time : times) {
    const auto bytes = static_cast<double>(time.bytes_moved);
    const double rate = time.microseconds > 0 ? bytes / time.microseconds * 1e6 : 0;
    const double share = all > 0 ? time.microseconds / all : 0;
    const double of_limit = bandwidth > 0 ? rate / bandwidth : 0;
    std::printf("    %-20s %5llu %12.1f %5.1f %%", time.name.c_str(),
                static_cast<unsigned long long>(time.calls), time.microseconds, 100 * share);
    nlohmann::json row{{"name", time.name},
                       {"calls", time.calls},
                       {"microseconds", time.microseconds},
                       {"share", share}};
    // Kernels that move as much as their input asks for (attention: positions) have no number of bytes.
    if (time.bytes_moved > 0) {
      std::printf(" %9.2f %10.1f %7.1f %%", bytes / 1e6, rate / 1e9, 100 * of_limit);
      row.update({{"bytes", time.bytes_moved},
                  {"gb_per_s", rate / 1e9},
                  {"fraction_of_read_bandwidth", of_limit}});
    }
    std::printf("\n");
    table.push_back(std::move(row));
  }
  return table;
}

}  // namespace bulkhead::bench
