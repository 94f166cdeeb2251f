// One Vulkan device: how it is chosen, its memory, its kernels. Nothing here depends on models or
// requests.
//
// All shaders address memory through buffer device addresses, which push constants pass to them, so there are no
// descriptor sets. (A storage-buffer descriptor reaches only 128 MiB on lavapipe.)
//
// Thread-safety: use a Device from one thread, except where a function says otherwise.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <vulkan/vulkan.h>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "gpu/activity.hpp"

namespace bulkhead::gpu {

enum class DeviceKind { kDiscrete, kIntegrated, kVirtual, kCpu, kOther };
const char* to_string(DeviceKind kind);

struct DeviceInfo {
  std::uint32_t index = 0;  // the device's place in vkEnumeratePhysicalDevices
  std::string name;
  DeviceKind kind = DeviceKind::kOther;
  std::uint32_t vendor_id = 0, device_id = 0;
  std::string driver;       // name and version as the driver writes them
  std::string api_version;  // "1.3.230"
  std::string uuid;         // hex
  std::string driver_uuid;  // hex; changes with the driver's version
  std::uint32_t subgroup_size =
      0;  // the driver's choice; kernels may ask for another within the limits
  std::uint32_t min_subgroup_size = 0, max_subgroup_size = 0;
  std::uint32_t shared_memory_bytes = 0;
  std::uint32_t max_workgroup_invocations = 0;
  std::uint64_t device_memory_bytes = 0;  // the largest device-local heap
  std::uint64_t free_memory_bytes =
      0;  // by VK_EXT_memory_budget if the device has it; otherwise nine tenths of the heap
  std::uint64_t max_allocation_bytes =
      0;  // of one Buffer (2 GiB on lavapipe): split what is larger
  double timestamp_period_ns = 0;
  bool has_transfer_queue = false;
  // Only for an opened Device: its shaders may use VK_KHR_cooperative_matrix to multiply 16x16 by 16x8 matrices of
  // halves, with float32 sums.
  bool matrix_units = false;
  // Only for an opened Device: it can allocate, export and import Memory::kShared.
  bool shares_memory = false;
  std::vector<std::string> missing;  // requirements that it does not meet, in words; empty: usable
};

// Lists every device, usable or not, for `bulkhead doctor`. kNotFound, with advice, if there is no Vulkan loader or
// driver.
Result<std::vector<DeviceInfo>> list_devices();

enum class Memory {
  kDeviceLocal,  // weights, KV, activations
  kUpload,       // host-visible, written by the host
  kReadback,     // host-visible and cached, read by the host
  // Like kDeviceLocal, and another process can share it (Device::export_memory). If the driver has none of it left, the
  // memory is kDeviceLocal, and export_memory says so.
  kShared,
};

class Device;

// A buffer with its memory. Its destructor frees both, unless the device was abandoned. Shaders use `address`.
// Destroy it before its Device.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  VkBuffer handle() const { return buffer_; }
  VkDeviceAddress address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }
  // The mapping, persistent and coherent, if the memory is host-visible; otherwise empty.
  std::span<std::byte> mapped() const {
    return {static_cast<std::byte*>(mapped_), mapped_ ? bytes_ : 0};
  }
  bool valid() const { return buffer_ != VK_NULL_HANDLE; }

 private:
  friend class Device;
  Device* device_ = nullptr;
  VkBuffer buffer_ = VK_NULL_HANDLE;
  VkDeviceMemory memory_ = VK_NULL_HANDLE;
  VkDeviceAddress address_ = 0;
  std::uint64_t bytes_ = 0;
  void* mapped_ = nullptr;
  bool shared_ = false;  // its memory can be exported
};

// A part of a buffer. Pools hand these out; kernels and copies take them.
struct BufferSlice {
  VkBuffer buffer = VK_NULL_HANDLE;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  VkDeviceAddress address = 0;  // of the slice's first byte
  std::byte* mapped = nullptr;  // of the slice's first byte, or null
};
BufferSlice slice(const Buffer& buffer, std::uint64_t offset, std::uint64_t bytes);
BufferSlice slice(const Buffer& buffer);

// A compute pipeline. Cheap to copy; the Device owns the pipeline until the Device is destroyed.
struct Kernel {
  VkPipeline pipeline = VK_NULL_HANDLE;
  VkPipelineLayout layout = VK_NULL_HANDLE;
  std::uint32_t push_bytes = 0;
  const char* name = "";
};

struct KernelSpec {
  const char* name = "";                 // for messages and profiles
  std::span<const std::uint32_t> spirv;  // must live as long as the Device, as embedded code does
  std::uint32_t push_bytes = 0;          // at most 128
  std::vector<std::uint32_t> constants;  // specialisation constants 0, 1, 2, ...
  // 0: the driver chooses the subgroup size. Otherwise exactly this size, with full subgroups: the workgroup's x must
  // be a multiple of it. kUnsupported outside [info().min_subgroup_size, max_subgroup_size].
  std::uint32_t required_subgroup_size = 0;
  // The driver takes several times as long to compile this kernel as most others, so compile it first.
  bool slow_to_compile = false;
};
// Orders specs by everything that determines the pipeline.
struct MakesAnotherPipeline {
  bool operator()(const KernelSpec& a, const KernelSpec& b) const;
};

struct DeviceOptions {
  std::string selector = "auto";  // auto | cpu | an index | part of a name, any case
  std::string cache_folder;       // the folder for pipelines between runs; empty: they are not kept
  // Uses Khronos' validation layer; its errors are logged and counted. BULKHEAD_VULKAN_VALIDATION=1 in the
  // environment switches it on, too.
  bool validation = false;
  bool statistics = false;  // for benchmarks: see Device::statistics
};

class Device {
 public:
  // Opens the device that the options select. auto prefers a discrete device, then an integrated one, then a CPU.
  // kNotFound lists the devices that exist; kUnsupported says what the chosen device lacks. With a cache_folder the
  // function also points the drivers' own shader caches there, by environment variables: open the first device while
  // the process has one thread.
  static Result<std::unique_ptr<Device>> open(const DeviceOptions& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  std::uint64_t free_memory_bytes() const;  // now

  // Makes one vkAllocateMemory call. kResourceExhausted says how much was requested and how much is free. Any thread;
  // buffers may also be freed on any thread.
  Result<Buffer> allocate(std::uint64_t bytes, Memory memory, const char* name);
  // Returns a descriptor for the memory of a kShared buffer, for a process on the same device and driver. The memory
  // lives as long as any descriptor or import of it, even if the process that allocated it ends.
  Result<UniqueFd> export_memory(const Buffer& buffer) const;
  // Makes a buffer on the memory that `fd` names. Another buffer of `bytes` was exported as `fd`; both share the same
  // bytes. It counts as an allocation. kCorrupt: the descriptor is not such memory. What a driver does with a forged
  // descriptor is undefined, so take descriptors only from a process that is as trusted as this one.
  Result<Buffer> import_memory(UniqueFd fd, std::uint64_t bytes, const char* name);
  std::uint64_t allocation_count() const { return allocations_; }  // vkAllocateMemory calls so far
  std::uint64_t allocations_alive() const { return allocations_alive_; }
  // Bytes of the buffers that exist now, including the host's staging memory; below, the most so far.
  std::uint64_t allocated_bytes() const { return allocated_bytes_; }
  std::uint64_t allocated_bytes_peak() const { return allocated_bytes_peak_; }
  std::uint64_t validation_errors() const;

  // Call this when a wait and the wait at clean-up have both timed out. The device may still use any memory that it
  // was given, so from now on buffers and the device itself are not freed. The process is about to end.
  void abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

  // Compiles a kernel, or finds it: equal specs are compiled once, and the cache on disk is searched first. Any
  // thread: kernels compile in parallel, and a call for a kernel that another thread compiles waits for that thread.
  Result<Kernel> make_kernel(const KernelSpec& spec);
  // Returns what the driver reports about a kernel that it compiled, in the driver's words (registers, spills); empty
  // if it reports nothing. Only for a Device opened with DeviceOptions::statistics.
  std::string statistics(const Kernel& kernel) const;
  // Saves the compiled pipelines for the next start; call it once the kernels are made. Without a cache_folder it
  // does nothing.
  Status save_pipeline_cache();

  VkDevice handle() const { return device_; }
  VkPhysicalDevice physical() const { return physical_; }
  VkQueue compute_queue() const { return compute_queue_; }
  std::uint32_t compute_family() const { return compute_family_; }
  // Returns the queue of the family that can only transfer, or the compute queue if there is no such family.
  VkQueue transfer_queue() const { return transfer_queue_; }
  std::uint32_t transfer_family() const { return transfer_family_; }
  // Returns a second queue of the transfer family, so that an upload need not wait behind a download that waits for
  // compute work. Returns the transfer queue if there is no second one.
  VkQueue download_queue() const { return download_queue_; }
  // Returns the largest group count of a dispatch in dimension 0, 1 or 2.
  std::uint32_t max_groups(int dimension) const;
  // Returns the number of valid bits of a timestamp on the compute queue; 0: it has no timestamps.
  std::uint32_t timestamp_bits() const;
  std::uint32_t transfer_timestamp_bits() const;  // the same for the transfer queue
  // Returns false if reading a timestamp waits, without a bound, for everything that was submitted to any queue, as
  // in Mesa's CPU driver. Then timestamps may be read only while nothing runs.
  bool tells_timestamps_at_once() const { return info_.kind != DeviceKind::kCpu; }
  bool has_host_query_reset() const;  // whether vkResetQueryPool works without a command buffer

  // What the device did and when, as its queues report it. Any thread.
  Activity& activity() { return activity_; }
  const Activity& activity() const { return activity_; }

  // Returns "device lost: ..." for VK_ERROR_DEVICE_LOST, "out of device memory", and so on.
  static Error vulkan_error(VkResult result, const std::string& what);

 private:
  Device() = default;
  void read_limits();
  Status make_logical_device(bool statistics);
  Status load_pipeline_cache(const std::string& folder);
  Status check(const KernelSpec& spec) const;
  Result<VkPipeline> compile(const KernelSpec& spec, VkPipelineLayout layout);
  Result<Buffer> make_buffer(std::uint64_t bytes, Memory memory, const char* name, UniqueFd import);
  struct Impl;
  std::unique_ptr<Impl> impl_;
  DeviceInfo info_;
  VkDevice device_ = VK_NULL_HANDLE;
  VkPhysicalDevice physical_ = VK_NULL_HANDLE;
  VkQueue compute_queue_ = VK_NULL_HANDLE;
  VkQueue transfer_queue_ = VK_NULL_HANDLE;
  VkQueue download_queue_ = VK_NULL_HANDLE;
  std::uint32_t compute_family_ = 0;
  std::uint32_t transfer_family_ = 0;
  std::atomic<std::uint64_t> allocations_ = 0, allocations_alive_ = 0;
  std::atomic<std::uint64_t> allocated_bytes_ = 0, allocated_bytes_peak_ = 0;
  std::atomic<bool> abandoned_ = false;
  Activity activity_;

  friend class Buffer;  // which decrements allocations_alive_
};

}  // namespace bulkhead::gpu
