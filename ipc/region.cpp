#include "ipc/region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <new>
#include <string>
#include <utility>

#include "config/base/random.hpp"
#include "ipc/fault_points.hpp"

namespace bulkhead::ipc {
namespace {

std::uint64_t region_bytes(std::uint64_t ring_bytes) {
  return kRegionDataOffset + 2 * ring_bytes;
}

Result<UniqueFd> make_memfd() {
  UniqueFd fd(::memfd_create("bulkhead-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_error(ErrorCode::kResourceExhausted, "memfd_create", errno);
  return fd;
}

// Removes the names that daemons left which were killed between shm_open and shm_unlink; nobody else would ever
// remove them. shm_unlink refuses to remove other users' objects.
void remove_names_of_the_dead() {
  std::error_code error;
  for (std::filesystem::directory_iterator at("/dev/shm", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    int pid = 0;
    if (std::sscanf(name.c_str(), "bulkhead-%d-", &pid) == 1 && pid > 0 && ::kill(pid, 0) != 0 &&
        errno == ESRCH) {
      ::shm_unlink(("/" + name).c_str());
    }
  }
}

// Nobody else can open the object: it has a random name, is created exclusively and only for its owner, and is
// unlinked at once.
Result<UniqueFd> make_posix_object() {
  remove_names_of_the_dead();
  char name[64];
  std::snprintf(name, sizeof name, "/bulkhead-%d-%016" PRIx64, static_cast<int>(::getpid()),
                random_u64());
  UniqueFd fd(::shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return errno_error(ErrorCode::kResourceExhausted, std::string("shm_open ") + name, errno);
  }
  reach(Point::kRegionNamed);
  if (::shm_unlink(name) != 0 && errno != ENOENT) {  // ENOENT: a daemon that can't see our pid has removed it
    return errno_error(ErrorCode::kInternal, std::string("shm_unlink ") + name, errno);
  }
  return fd;
}

}  // namespace

Result<std::uint64_t> checked_ring_bytes(std::uint32_t ring_kib) {
  const std::uint64_t bytes = std::uint64_t{ring_kib} * 1024;
  if (!std::has_single_bit(bytes) || bytes < kMinRingBytes || bytes > kMaxRingBytes) {
    return Error(ErrorCode::kInvalidArgument, "ipc.ring_kib is " + std::to_string(ring_kib) +
                                                  "; it must be a power of two from 4 to 262144");
  }
  return bytes;
}

Result<Region> Region::create(config::RegionKind kind, std::uint64_t ring_bytes, UniqueFd& fd) {
  BULKHEAD_TRY(UniqueFd made,
               kind == config::RegionKind::kMemfd ? make_memfd() : make_posix_object());
  reach(Point::kRegionMade);
  const auto size = static_cast<off_t>(region_bytes(ring_bytes));
  if (::ftruncate(made.get(), size) != 0) {
    return errno_error(ErrorCode::kResourceExhausted, "sizing the shared region", errno);
  }
  // Reserve the pages now, so that a full /dev/shm is an error here and not a SIGBUS later. A signal that comes
  // meanwhile (SIGHUP, or SIGCONT after Ctrl-Z) undoes what was reserved so far.
  int failed = 0;
  do {
    failed = ::posix_fallocate(made.get(), 0, size);
  } while (failed == EINTR);
  if (failed != 0) {
    return errno_error(ErrorCode::kResourceExhausted,
                       "reserving " + std::to_string(size) +
                           " bytes of shared memory for a worker (lower ipc.ring_kib?)",
                       failed);
  }
  reach(Point::kRegionSized);
  if (kind == config::RegionKind::kMemfd &&
      ::fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errno_error(ErrorCode::kInternal, "sealing the shared region", errno);
  }
  if (kind == config::RegionKind::kMemfd) reach(Point::kRegionSealed);
  BULKHEAD_TRY(Region region, map(made.get(), ring_bytes));
  auto* header = new (region.base_) RegionHeader{};
  header->magic = kRegionMagic;
  header->version = kRegionVersion;
  header->ring_bytes = ring_bytes;
  fd = std::move(made);
  return region;
}

Result<Region> Region::open(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return errno_error(ErrorCode::kInvalidArgument,
                       "the inherited region, descriptor " + std::to_string(fd), errno);
  }
  const auto wrong = [&](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument,
                 "descriptor " + std::to_string(fd) + " is not a ring region: " + what);
  };
  // The region's size determines the rings' size, and the header must agree.
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || size <= kRegionDataOffset) {
    return wrong("it is not shared memory of more than " + std::to_string(kRegionDataOffset) +
                 " bytes");
  }
  const std::uint64_t ring_bytes = (size - kRegionDataOffset) / 2;
  if (!std::has_single_bit(ring_bytes) || ring_bytes < kMinRingBytes ||
      ring_bytes > kMaxRingBytes || region_bytes(ring_bytes) != size) {
    return wrong("its size is " + std::to_string(size));
  }
  BULKHEAD_TRY(Region region, map(fd, ring_bytes));
  const RegionHeader& header = region.header();
  if (header.magic != kRegionMagic) return wrong("its magic number is not Bulkhead's");
  if (header.version != kRegionVersion) {
    return wrong("its version is " + std::to_string(header.version) + ", this program knows " +
                 std::to_string(kRegionVersion) + " (daemon and worker are from different builds)");
  }
  if (header.ring_bytes != ring_bytes) return wrong("its header and its size disagree");
  return region;
}

Result<Region> Region::map(int fd, std::uint64_t ring_bytes) {
  void* base = ::mmap(nullptr, region_bytes(ring_bytes), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_POPULATE, fd, 0);
  if (base == MAP_FAILED) {
    return errno_error(ErrorCode::kResourceExhausted, "mapping the shared region", errno);
  }
  reach(Point::kRegionMapped);
  return Region(static_cast<std::byte*>(base), ring_bytes);
}

Region::Region(Region&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), ring_bytes_(other.ring_bytes_) {}

Region::~Region() {
  if (base_ != nullptr) ::munmap(base_, region_bytes(ring_bytes_));
}

}  // namespace bulkhead::ipc
