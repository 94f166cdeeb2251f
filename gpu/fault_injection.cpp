#include "gpu/fault_injection.hpp"

#ifdef BULKHEAD_FAULT_INJECTION

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>

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

// A kind of call: its name in BULKHEAD_FAIL_GPU_CALL, its point for BULKHEAD_FAULTS, and the error that such a
// call fails with most often.
struct CallRow {
  Call call;
  std::string_view name;
  const char* point;
  VkResult usual_failure;
};
constexpr CallRow kCallRows[] = {
    {Call::kAllocate, "allocate", "gpu.allocate", VK_ERROR_OUT_OF_DEVICE_MEMORY},
    {Call::kSubmit, "submit", "gpu.submit", VK_ERROR_DEVICE_LOST},
    {Call::kWait, "wait", "gpu.wait", VK_TIMEOUT},
    {Call::kCreate, "create", "gpu.create", VK_ERROR_OUT_OF_DEVICE_MEMORY},
};

const CallRow& row_of(Call call) {
  const CallRow* const row = std::ranges::find(kCallRows, call, &CallRow::call);
  if (row == std::end(kCallRows)) std::abort();  // every kind has a row
  return *row;
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
  for (const CallRow& row : kCallRows) {
    if (kind == row.name) plan.kinds = row.call;
  }
  if (result == "device_lost") plan.result = VK_ERROR_DEVICE_LOST;
  if (result == "out_of_memory") plan.result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
  if (result == "timeout") plan.result = VK_TIMEOUT;
  spdlog::warn("fault injection: GPU call {} will fail", spec);
  return plan;
}

std::mutex mutex;

Plan& plan() {
  static Plan instance = plan_from_environment();
  return instance;
}

}  // namespace

VkResult injected(Call call) {
  const CallRow& row = row_of(call);
  if (bulkhead::fault::fails(row.point)) return row.usual_failure;
  const std::lock_guard lock(mutex);
  Plan& armed = plan();
  if (armed.remaining == 0) return VK_SUCCESS;
  if ((static_cast<std::uint32_t>(armed.kinds) & static_cast<std::uint32_t>(call)) == 0)
    return VK_SUCCESS;
  if (--armed.remaining > 0) return VK_SUCCESS;
  armed.fired = true;
  return armed.result == VK_SUCCESS ? row.usual_failure : armed.result;
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
