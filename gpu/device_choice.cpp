#include "gpu/device_choice.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <memory>

#include "config/base/text.hpp"
#include "gpu/device_numbers.hpp"

namespace bulkhead::gpu {
namespace {

std::string listing(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& candidate : candidates) {
    text += fmt::format("{}{}: {} ({}){}", text.empty() ? "" : "; ", candidate.info.index,
                        candidate.info.name, to_string(candidate.info.kind),
                        candidate.info.missing.empty() ? "" : " [unusable]");
  }
  return text;
}

int rank(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kDiscrete:
      return 0;
    case DeviceKind::kIntegrated:
      return 1;
    case DeviceKind::kVirtual:
      return 2;
    case DeviceKind::kOther:
      return 3;
    case DeviceKind::kCpu:
      break;
  }
  return 4;
}

// Returns the usable device of the best rank; of equal ones the first in the driver's order.
const Candidate* best_of(const std::vector<Candidate>& candidates, bool cpu_only) {
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (!candidate.info.missing.empty()) continue;
    if (cpu_only && candidate.info.kind != DeviceKind::kCpu) continue;
    if (best == nullptr || rank(candidate.info.kind) < rank(best->info.kind)) best = &candidate;
  }
  return best;
}

}  // namespace

Result<Candidate> choose(const std::vector<Candidate>& candidates, const std::string& selector) {
  const std::string wanted = lower(selector);
  const Candidate* chosen = nullptr;
  if (wanted.empty() || wanted == "auto" || wanted == "cpu") {
    chosen = best_of(candidates, wanted == "cpu");
    if (chosen == nullptr) {
      for (const Candidate& candidate : candidates) {
        if (wanted != "cpu" || candidate.info.kind == DeviceKind::kCpu) chosen = &candidate;
      }
    }
    if (chosen == nullptr) {
      return Error(ErrorCode::kNotFound,
                   fmt::format("device 'cpu': there is no CPU device (apt-get install "
                               "mesa-vulkan-drivers); there is {}",
                               listing(candidates)));
    }
  } else {
    std::uint32_t index = 0;
    const auto [end, failed] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), index);
    const bool is_index = failed == std::errc() && end == wanted.data() + wanted.size();
    for (const Candidate& candidate : candidates) {
      const bool matches = is_index ? candidate.info.index == index
                                    : lower(candidate.info.name).find(wanted) != std::string::npos;
      // Of devices with the same name, prefer a usable one.
      if (matches && (chosen == nullptr ||
                      (!chosen->info.missing.empty() && candidate.info.missing.empty()))) {
        chosen = &candidate;
      }
    }
    if (chosen == nullptr) {
      return Error(
          ErrorCode::kNotFound,
          fmt::format(
              "device '{}': no such device; write auto, cpu, an index or part of a name: {}",
              selector, listing(candidates)));
    }
  }
  if (!chosen->info.missing.empty()) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("device {} ({}) lacks what Bulkhead needs: {}", chosen->info.index,
                             chosen->info.name, joined(chosen->info.missing)));
  }
  return *chosen;
}

Result<std::vector<Candidate>> candidates_of(const Instance& instance) {
  BULKHEAD_TRY(const std::vector<VkPhysicalDevice> devices, instance.devices());
  std::vector<Candidate> candidates;
  for (std::uint32_t i = 0; i < devices.size(); ++i)
    candidates.push_back({devices[i], describe_device(devices[i], i)});
  return candidates;
}

Result<std::vector<std::optional<std::uint32_t>>> device_numbers(
    const std::vector<std::string>& texts) {
  BULKHEAD_TRY(const std::unique_ptr<Instance> instance, Instance::create(false));
  BULKHEAD_TRY(const std::vector<Candidate> candidates, candidates_of(*instance));
  std::vector<std::optional<std::uint32_t>> numbers;
  for (const std::string& text : texts) {
    const Result<Candidate> chosen = choose(candidates, text);
    numbers.push_back(chosen.ok() ? std::optional(chosen->info.index) : std::nullopt);
  }
  return numbers;
}

}  // namespace bulkhead::gpu
