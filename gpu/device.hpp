// One Vulkan device: choosing it, its memory, its kernels. Knows nothing of models or requests.
//
// All shaders address memory through buffer device addresses handed over in push constants (a
// storage-buffer descriptor reaches only 128 MiB on lavapipe), so there are no descriptor sets
// anywhere.
//
// Thread-safety: a Device may be used from one thread, except where a function says otherwise.
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
  std::uint32_t index = 0;  // as vkEnumeratePhysicalDevices orders them
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
      0;  // by VK_EXT_memory_budget where there is one, else what a plain guess allows
  std::uint64_t max_allocation_bytes =
      0;  // of one Buffer (2 GiB on lavapipe): split what is larger
  double timestamp_period_ns = 0;
  bool has_transfer_queue = false;
  // Of an opened Device only: its shaders may use VK_KHR_cooperative_matrix for matrices of halves,
  // 16x16 times 16x8, with float32 sums.
  bool matrix_units = false;
  // Of an opened Device only: Memory::kShared can be had, exported and imported.
  bool shares_memory = false;
  std::vector<std::string> missing;  // requirements it does not meet, in words; empty: usable
};

// Every device, usable or not, for `bulkhead doctor`. kNotFound with advice when there is no Vulkan
// loader or driver.
Result<std::vector<DeviceInfo>> list_devices();

enum class Memory {
  kDeviceLocal,  // weights, KV, activations
  kUpload,       // host-visible, written by the host
  kReadback,     // host-visible and cached, read by the host
  kShared,  // as kDeviceLocal, and another process can have it (Device::export_memory); where the
            // driver has none such left it is kDeviceLocal, and export_memory says so
};

class Device;

// A buffer with its memory; frees both, unless its device was abandoned. `address` is what shaders
// use. Ends before its Device does.
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
  // Host-visible memory only, persistently mapped and coherent; empty otherwise.
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

// Part of a buffer: what pools hand out and kernels and copies take.
struct BufferSlice {
  VkBuffer buffer = VK_NULL_HANDLE;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  VkDeviceAddress address = 0;  // of the slice's first byte
  std::byte* mapped = nullptr;  // of the slice's first byte, or null
};
BufferSlice slice(const Buffer& buffer, std::uint64_t offset, std::uint64_t bytes);
BufferSlice slice(const Buffer& buffer);

// A compute pipeline. Cheap to copy; the Device owns what it names and keeps it until it is
// destroyed.
struct Kernel {
  VkPipeline pipeline = VK_NULL_HANDLE;
  VkPipelineLayout layout = VK_NULL_HANDLE;
  std::uint32_t push_bytes = 0;
  const char* name = "";
};

struct KernelSpec {
  const char* name = "";                 // for messages and profiles
  std::span<const std::uint32_t> spirv;  // must live as long as the Device: embedded code does
  std::uint32_t push_bytes = 0;          // at most 128
  std::vector<std::uint32_t> constants;  // specialisation constants 0, 1, 2, ...
  // 0: the driver's choice. Else exactly this, with full subgroups: the workgroup's x must be a
  // multiple of it. kUnsupported outside [info().min_subgroup_size, max_subgroup_size].
  std::uint32_t required_subgroup_size = 0;
  // The driver takes several times as long to compile it as most others: compile it first.
  bool slow_to_compile = false;
};
// Orders specs by all that makes the pipeline.
struct MakesAnotherPipeline {
  bool operator()(const KernelSpec& a, const KernelSpec& b) const;
};

struct DeviceOptions {
  std::string selector = "auto";  // auto | cpu | an index | part of a name, any case
  std::string cache_folder;       // pipelines are kept here between runs; empty: not kept
  // Khronos validation layer, its errors logged and counted. Also on with
  // BULKHEAD_VULKAN_VALIDATION=1 in the environment.
  bool validation = false;
  bool statistics = false;  // for benchmarks: see Device::statistics
};

class Device {
 public:
  // auto: a discrete device, then an integrated one, then a CPU. kNotFound lists what there is,
  // kUnsupported says what the chosen device lacks. With a cache_folder the drivers' own shader
  // caches are pointed there too, by environment variables: open the first device while the process
  // has one thread.
  static Result<std::unique_ptr<Device>> open(const DeviceOptions& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  std::uint64_t free_memory_bytes() const;  // now

  // One vkAllocateMemory. kResourceExhausted says what was asked and what is free. Any thread;
  // buffers may be freed on any, too.
  Result<Buffer> allocate(std::uint64_t bytes, Memory memory, const char* name);
  // A descriptor that names the memory of a buffer of kShared, for a process on the same device and
  // driver. The memory lives as long as any descriptor or import of it does, whatever becomes of the
  // process that allocated it.
  Result<UniqueFd> export_memory(const Buffer& buffer) const;
  // A buffer on memory that `fd` names, which another buffer of `bytes` was exported as: the same
  // bytes, shared. Counts as an allocation. kCorrupt: the descriptor names nothing of the kind; what
  // a driver makes of one that was forged is the driver's affair, so take them from a process as
  // trusted as this one.
  Result<Buffer> import_memory(UniqueFd fd, std::uint64_t bytes, const char* name);
  std::uint64_t allocation_count() const { return allocations_; }  // vkAllocateMemory calls so far
  std::uint64_t allocations_alive() const { return allocations_alive_; }
  // Bytes of the buffers alive, staging memory of the host's included; the most so far.
  std::uint64_t allocated_bytes() const { return allocated_bytes_; }
  std::uint64_t allocated_bytes_peak() const { return allocated_bytes_peak_; }
  std::uint64_t validation_errors() const;

  // Call it when a wait and the wait at clean-up both timed out. The device may still use anything
  // that it was ever given, so from now on buffers and the device itself are not freed. The process
  // is about to end.
  void abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

  // Equal specs are compiled once; the on-disk cache is looked up first. Any thread: kernels compile
  // in parallel, and a call for a kernel that another thread is compiling waits for it.
  Result<Kernel> make_kernel(const KernelSpec& spec);
  // What the driver says about a kernel that it compiled, in its own words (registers, spills); empty
  // if it says nothing. Only for a Device opened with DeviceOptions::statistics.
  std::string statistics(const Kernel& kernel) const;
  // Writes what the driver would like to find at the next start: call once the kernels are made. A
  // device without a cache_folder has nothing to save.
  Status save_pipeline_cache();

  VkDevice handle() const { return device_; }
  VkPhysicalDevice physical() const { return physical_; }
  VkQueue compute_queue() const { return compute_queue_; }
  std::uint32_t compute_family() const { return compute_family_; }
  // The transfer-only family's queue where there is one, else the compute queue.
  VkQueue transfer_queue() const { return transfer_queue_; }
  std::uint32_t transfer_family() const { return transfer_family_; }
  // A second queue of the transfer family where there is one, so that an upload need not wait
  // behind a download that waits for compute; else the transfer queue.
  VkQueue download_queue() const { return download_queue_; }
  // Largest group count of a dispatch in dimension 0, 1, 2.
  std::uint32_t max_groups(int dimension) const;
  // Significant bits of a timestamp on the compute queue; 0: it has none.
  std::uint32_t timestamp_bits() const;
  std::uint32_t transfer_timestamp_bits() const;  // the same of the transfer queue
  // False: reading a timestamp waits for all that was submitted to any queue, without a bound, as
  // Mesa's CPU driver does. Then it may be read only when nothing runs.
  bool tells_timestamps_at_once() const { return info_.kind != DeviceKind::kCpu; }
  bool has_host_query_reset() const;  // vkResetQueryPool, without a command buffer

  // What it did when, as the queues that run on it tell; any thread.
  Activity& activity() { return activity_; }
  const Activity& activity() const { return activity_; }

  // "device lost: ..." for VK_ERROR_DEVICE_LOST, "out of device memory", and so on.
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

  friend class Buffer;  // counts allocations_alive_ down
};

}  // namespace bulkhead::gpu
