#include "gpu/fault_injection.hpp"

#ifdef BULKHEAD_FAULT_INJECTION

#include <cstdlib>
#include <mutex>
#include <string>

#include "config/base/fault_points.hpp"
#include "config/base/log.hpp"

namespace bulkhead::gpu::fault {
namespace {

struct Plan {
  std::uint64_t remaining = 0;  // 0: disarmed
  Call kinds = Call::kAny;
  VkResult result = VK_SUCCESS;
  bool fired = false;
};

VkResult usual_failure(Call call) {
  switch (call) {
    case Call::kAllocate:
    case Call::kCreate:
      return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    case Call::kWait:
      return VK_TIMEOUT;
    default:
      return VK_ERROR_DEVICE_LOST;
  }
}

Plan plan_from_environment() {
  Plan plan;
  const char* text = std::getenv("BULKHEAD_FAIL_GPU_CALL");
  if (text == nullptr) return plan;
  const std::string spec = text;
  const auto first = spec.find(':');
  const auto second = first == std::string::npos ? first : spec.find(':', first + 1);
  const std::string kind =
      first == std::string::npos
          ? ""
          : spec.substr(first + 1, second == std::string::npos ? second : second - first - 1);
  const std::string result = second == std::string::npos ? "" : spec.substr(second + 1);
  plan.remaining = std::strtoull(spec.c_str(), nullptr, 10);
  if (kind == "allocate") plan.kinds = Call::kAllocate;
  if (kind == "submit") plan.kinds = Call::kSubmit;
  if (kind == "wait") plan.kinds = Call::kWait;
  if (kind == "create") plan.kinds = Call::kCreate;
  if (result == "device_lost") plan.result = VK_ERROR_DEVICE_LOST;
  if (result == "out_of_memory") plan.result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
  if (result == "timeout") plan.result = VK_TIMEOUT;
  spdlog::warn("fault injection: GPU call {} will fail", spec);
  return plan;
}

const char* point_of(Call call) {
  switch (call) {
    case Call::kAllocate:
      return "gpu.allocate";
    case Call::kSubmit:
      return "gpu.submit";
    case Call::kWait:
      return "gpu.wait";
    default:
      return "gpu.create";
  }
}

std::mutex mutex;

Plan& plan() {
  static Plan instance = plan_from_environment();
  return instance;
}

}  // namespace

VkResult injected(Call call) {
  if (bulkhead::fault::fails(point_of(call))) return usual_failure(call);
  const std::lock_guard lock(mutex);
  Plan& armed = plan();
  if (armed.remaining == 0) return VK_SUCCESS;
  if ((static_cast<std::uint32_t>(armed.kinds) & static_cast<std::uint32_t>(call)) == 0)
    return VK_SUCCESS;
  if (--armed.remaining > 0) return VK_SUCCESS;
  armed.fired = true;
  return armed.result == VK_SUCCESS ? usual_failure(call) : armed.result;
}

void arm(std::uint64_t n, Call kinds, VkResult result) {
  const std::lock_guard lock(mutex);
  plan() = Plan{n, kinds, result, false};
}

bool fired() {
  const std::lock_guard lock(mutex);
  return plan().fired;
}

}  // namespace bulkhead::gpu::fault

#endif
