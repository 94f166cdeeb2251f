// Buffers and the choice of memory for them.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "config/base/log.hpp"
#include "gpu/device.hpp"
#include "gpu/device_impl.hpp"
#include "gpu/fault_injection.hpp"

namespace bulkhead::gpu {
namespace {

// Asking the system for its free memory costs some microseconds, so smaller requests on a CPU device skip it.
constexpr std::uint64_t kCheckedAgainstSystemBytes = 16 << 20;

struct Wish {
  VkMemoryPropertyFlags required, preferred, avoided;
};

Wish wish_for(Memory memory) {
  constexpr VkMemoryPropertyFlags kDevice = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  constexpr VkMemoryPropertyFlags kVisible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
  constexpr VkMemoryPropertyFlags kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  constexpr VkMemoryPropertyFlags kMapped = kVisible | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  switch (memory) {
    case Memory::kUpload:
      // Cached memory suits packing, which does not write in one rising stream, and a device reads it as fast as other
      // memory.
      return {kMapped, kCached, kDevice};
    case Memory::kReadback:
      return {kMapped, kCached, kDevice};
    case Memory::kDeviceLocal:
    case Memory::kShared:
      break;
  }
  return {kDevice, 0,
          kVisible};  // host-visible device memory may be a small window, so it is not used
}

std::optional<std::uint32_t> choose_type(const VkPhysicalDeviceMemoryProperties& memory,
                                         std::uint32_t allowed, const Wish& wish) {
  constexpr VkMemoryPropertyFlags kUnwanted =
      VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT |
      VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD | VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD;
  std::optional<std::uint32_t> best;
  int best_score = 0;
  std::uint64_t best_heap_bytes = 0;
  for (std::uint32_t i = 0; i < memory.memoryTypeCount; ++i) {
    const VkMemoryPropertyFlags flags = memory.memoryTypes[i].propertyFlags;
    if ((allowed >> i & 1) == 0 || (flags & wish.required) != wish.required ||
        (flags & kUnwanted) != 0)
      continue;
    const int score =
        4 * __builtin_popcount(flags & wish.preferred) - __builtin_popcount(flags & wish.avoided);
    const std::uint64_t heap_bytes = memory.memoryHeaps[memory.memoryTypes[i].heapIndex].size;
    if (!best || score > best_score || (score == best_score && heap_bytes > best_heap_bytes)) {
      best = i;
      best_score = score;
      best_heap_bytes = heap_bytes;
    }
  }
  return best;
}

std::string mib(std::uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// The properties of a buffer that a caller asks for.
struct BufferRequest {
  std::uint64_t bytes = 0;
  Memory memory = Memory::kDeviceLocal;
  const char* name = "";
  bool imports = false;  // its memory comes from another process

  bool shares() const { return memory == Memory::kShared; }
};

Error exhausted(const Device& device, const BufferRequest& asked, const std::string& why) {
  const bool local = asked.memory == Memory::kDeviceLocal || asked.shares();
  return Error(ErrorCode::kResourceExhausted,
               fmt::format("{}: {} of {} memory asked for on {}: {}", asked.name, mib(asked.bytes),
                           local ? "device" : "host-visible", device.info().name, why));
}

// Refuses requests that must not reach the driver.
Status check_request(const Device& device, const BufferRequest& asked) {
  const DeviceInfo& info = device.info();
  if (asked.bytes == 0)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: a buffer of 0 bytes was asked for", asked.name));
  if (asked.bytes > info.max_allocation_bytes) {
    return exhausted(device, asked,
                     fmt::format("this device allows {} in one allocation; split it",
                                 mib(info.max_allocation_bytes)));
  }
  if (asked.shares() && !info.shares_memory) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("{}: {} can't share memory between processes", asked.name, info.name));
  }
  // A CPU device may hand out memory that the system does not have; the system would then kill a process.
  if (!asked.imports && info.kind == DeviceKind::kCpu &&
      asked.bytes >= kCheckedAgainstSystemBytes) {
    if (const std::uint64_t available = device.free_memory_bytes(); asked.bytes > available) {
      return exhausted(device, asked, fmt::format("{} is free", mib(available)));
    }
  }
  return {};
}

VkResult create_buffer(VkDevice device, const BufferRequest& asked, std::uint32_t compute_family,
                       std::uint32_t transfer_family, VkBuffer* made) {
  VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  info.size = asked.bytes;
  info.usage = kBufferUsage;
  VkExternalMemoryBufferCreateInfo external{VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO};
  external.handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
  if (asked.shares()) info.pNext = &external;
  // Both queue families may use the buffer, so transfers need no hand-over. Exclusive ownership would gain nothing,
  // because buffers have no layout.
  const std::uint32_t families[] = {compute_family, transfer_family};
  if (compute_family != transfer_family) {
    info.sharingMode = VK_SHARING_MODE_CONCURRENT;
    info.queueFamilyIndexCount = 2;
    info.pQueueFamilyIndices = families;
  }
  return vkCreateBuffer(device, &info, nullptr, made);
}

// The structs that vkAllocateMemory takes, which point to each other.
class AllocateChain {
 public:
  AllocateChain(std::uint64_t bytes, std::uint32_t type) {
    info_.allocationSize = bytes;
    info_.memoryTypeIndex = type;
    flags_.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
    add(flags_);
  }
  AllocateChain(const AllocateChain&) = delete;
  AllocateChain& operator=(const AllocateChain&) = delete;

  // The memory comes from a descriptor. If the allocation succeeds, the driver owns the descriptor.
  void import(int fd) {
    imported_.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
    imported_.fd = fd;
    add(imported_);
  }
  void share() {
    exported_.handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
    add(exported_);
  }
  void dedicate(VkBuffer buffer) {
    dedicated_.buffer = buffer;
    add(dedicated_);
  }
  const VkMemoryAllocateInfo& info() const { return info_; }

 private:
  template <typename More>
  void add(More& more) {
    more.pNext = info_.pNext;
    info_.pNext = &more;
  }

  VkMemoryAllocateInfo info_{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
  VkMemoryAllocateFlagsInfo flags_{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO};
  VkImportMemoryFdInfoKHR imported_{VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR};
  VkExportMemoryAllocateInfo exported_{VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO};
  VkMemoryDedicatedAllocateInfo dedicated_{VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO};
};

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept {
  *this = std::move(other);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(buffer_, other.buffer_);
  std::swap(memory_, other.memory_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(shared_, other.shared_);
  return *this;
}

Buffer::~Buffer() {
  if (device_ == nullptr || device_->abandoned()) return;
  if (buffer_ != VK_NULL_HANDLE) vkDestroyBuffer(device_->handle(), buffer_, nullptr);
  if (memory_ == VK_NULL_HANDLE) return;
  vkFreeMemory(device_->handle(), memory_, nullptr);  // also unmaps it
  --device_->allocations_alive_;
  device_->allocated_bytes_ -= bytes_;
}

BufferSlice slice(const Buffer& buffer, std::uint64_t offset, std::uint64_t bytes) {
  BufferSlice part;
  part.buffer = buffer.handle();
  part.offset = offset;
  part.bytes = bytes;
  part.address = buffer.address() + offset;
  part.mapped = buffer.mapped().empty() ? nullptr : buffer.mapped().data() + offset;
  return part;
}

BufferSlice slice(const Buffer& buffer) {
  return slice(buffer, 0, buffer.bytes());
}

Result<Buffer> Device::allocate(std::uint64_t bytes, Memory memory, const char* name) {
  Result<Buffer> made = make_buffer(bytes, memory, name, {});
  if (made.ok() || memory != Memory::kShared || made.error().code() == ErrorCode::kDeviceLost)
    return made;
  spdlog::warn("{}; trying memory that other processes can't have", made.error().message());
  return make_buffer(bytes, Memory::kDeviceLocal, name, {});
}

Result<Buffer> Device::import_memory(UniqueFd fd, std::uint64_t bytes, const char* name) {
  struct stat file {};
  if (!fd.valid() || ::fstat(fd.get(), &file) != 0)
    return Error(ErrorCode::kInvalidArgument, fmt::format("{}: nothing to import", name));
  // A driver that uses memory files maps as much as requested; access beyond the file's end would be a SIGBUS.
  if (S_ISREG(file.st_mode) && static_cast<std::uint64_t>(file.st_size) < bytes) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("{}: the memory to import has {}, and {} are wanted", name,
                             mib(static_cast<std::uint64_t>(file.st_size)), mib(bytes)));
  }
  return make_buffer(bytes, Memory::kShared, name, std::move(fd));
}

Result<UniqueFd> Device::export_memory(const Buffer& buffer) const {
  if (!info_.shares_memory || !buffer.valid())
    return Error(ErrorCode::kUnsupported, info_.name + " can't export memory");
  if (!buffer.shared_)
    return Error(ErrorCode::kUnsupported, "memory that could not be had as shared");
  VkMemoryGetFdInfoKHR info{VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR};
  info.memory = buffer.memory_;
  info.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
  int fd = -1;
  const VkResult result = impl_->get_memory_fd(device_, &info, &fd);
  if (result != VK_SUCCESS) return vulkan_error(result, "exporting memory");
  return UniqueFd(fd);
}

Result<Buffer> Device::make_buffer(std::uint64_t bytes, Memory memory, const char* name,
                                   UniqueFd import) {
  const bool imports = import.valid(), shares = memory == Memory::kShared;
  const BufferRequest asked{bytes, memory, name, imports};
  BULKHEAD_RETURN_IF_ERROR(check_request(*this, asked));
  Buffer buffer;
  buffer.device_ = this;
  buffer.bytes_ = bytes;
  buffer.shared_ = shares;
  VkResult result =
      create_buffer(device_, asked, compute_family_, transfer_family_, &buffer.buffer_);
  if (result != VK_SUCCESS)
    return vulkan_error(result, fmt::format("creating buffer {} of {}", name, mib(bytes)));

  VkMemoryRequirements needs{};
  vkGetBufferMemoryRequirements(device_, buffer.buffer_, &needs);
  const std::optional<std::uint32_t> type =
      choose_type(impl_->memory, needs.memoryTypeBits, wish_for(memory));
  if (!type) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("{}: {} has no memory of the kind that is needed", name, info_.name));
  }
  AllocateChain chain(needs.size, *type);
  if (imports)
    chain.import(import.get());
  else if (shares)
    chain.share();
  if (shares && impl_->shares_dedicated) chain.dedicate(buffer.buffer_);
  result = fault::allocate_memory(device_, chain.info(), &buffer.memory_);
  if (imports && result == VK_SUCCESS) (void)import.release();  // the driver owns it now
  if (result == VK_ERROR_INVALID_EXTERNAL_HANDLE)
    return Error(ErrorCode::kCorrupt, fmt::format("{}: the driver can't import it", name));
  if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY) {
    return exhausted(*this, asked, fmt::format("{} is free", mib(free_memory_bytes())));
  }
  if (result != VK_SUCCESS)
    return vulkan_error(result, fmt::format("allocating {} for {}", mib(bytes), name));
  ++allocations_;
  ++allocations_alive_;
  const std::uint64_t alive = allocated_bytes_ += bytes;
  for (std::uint64_t peak = allocated_bytes_peak_;
       peak < alive && !allocated_bytes_peak_.compare_exchange_weak(peak, alive);) {
  }
  result = vkBindBufferMemory(device_, buffer.buffer_, buffer.memory_, 0);
  if (result != VK_SUCCESS) return vulkan_error(result, fmt::format("binding memory to {}", name));
  if (memory != Memory::kDeviceLocal && !shares) {
    result = vkMapMemory(device_, buffer.memory_, 0, VK_WHOLE_SIZE, 0, &buffer.mapped_);
    if (result != VK_SUCCESS) return vulkan_error(result, fmt::format("mapping {}", name));
  }
  VkBufferDeviceAddressInfo address{VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO};
  address.buffer = buffer.buffer_;
  buffer.address_ = vkGetBufferDeviceAddress(device_, &address);
  impl_->instance->name(device_, VK_OBJECT_TYPE_BUFFER,
                        reinterpret_cast<std::uint64_t>(buffer.buffer_), name);
  return buffer;
}

}  // namespace bulkhead::gpu
