// The shared memory of one worker: two rings and a heartbeat.
//
//   0     RegionHeader: magic, version, ring size      written by the daemon before the start
//   128   heartbeat: step, monotonic ns                written by the worker
//   512   RingControl, daemon -> worker
//   1024  RingControl, worker -> daemon
//   4096  data, daemon -> worker                       ring_bytes
//   ...   data, worker -> daemon                       ring_bytes
//
// The daemon keeps the sizes with which it made the region and never reads the header again. It seals a memfd against
// resizing before anyone else has it. A POSIX object can't be sealed; there the worker's system call filter refuses
// ftruncate. Without the filter, a worker that shrinks the object could end the daemon by SIGBUS; memfd is the
// default.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "config/settings.hpp"
#include "ipc/ring.hpp"

namespace bulkhead::ipc {

inline constexpr std::uint64_t kRegionMagic = 0x30474E4952484B42;  // "BKHRING0"
inline constexpr std::uint32_t kRegionVersion = 1;
inline constexpr std::uint64_t kRegionDataOffset = 4096;
inline constexpr std::uint64_t kMinRingBytes = 4096;
inline constexpr std::uint64_t kMaxRingBytes = std::uint64_t{256} << 20;

struct RegionHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t reserved;
  std::uint64_t ring_bytes;  // each direction
  alignas(128) std::atomic<std::uint64_t> beat_step;
  std::atomic<std::uint64_t> beat_ns;
  alignas(512) RingControl to_worker;
  RingControl to_daemon;
};
static_assert(offsetof(RegionHeader, beat_step) == 128);
static_assert(offsetof(RegionHeader, to_worker) == 512);
static_assert(offsetof(RegionHeader, to_daemon) == 1024);
static_assert(sizeof(RegionHeader) <= kRegionDataOffset);

// kInvalidArgument unless `ring_kib` is a power of two and gives 4 KiB to 256 MiB.
Result<std::uint64_t> checked_ring_bytes(std::uint32_t ring_kib);

// A mapped region. Destroying the object unmaps it.
class Region {
 public:
  // Makes the daemon's region: reserves all of its memory (so that memory can't run out later) and seals or unlinks
  // it. `fd` is for the worker; the daemon may close it once the worker has it.
  static Result<Region> create(config::RegionKind kind, std::uint64_t ring_bytes, UniqueFd& fd);
  // Opens the worker's region: checks size, magic and version.
  static Result<Region> open(int fd);

  Region(Region&& other) noexcept;
  Region& operator=(Region&&) = delete;
  ~Region();

  RegionHeader& header() const { return *reinterpret_cast<RegionHeader*>(base_); }
  std::uint64_t ring_bytes() const { return ring_bytes_; }
  std::byte* to_worker_data() const { return base_ + kRegionDataOffset; }
  std::byte* to_daemon_data() const { return base_ + kRegionDataOffset + ring_bytes_; }

 private:
  Region(std::byte* base, std::uint64_t ring_bytes) : base_(base), ring_bytes_(ring_bytes) {}
  static Result<Region> map(int fd, std::uint64_t ring_bytes);

  std::byte* base_;
  std::uint64_t ring_bytes_;
};

}  // namespace bulkhead::ipc
