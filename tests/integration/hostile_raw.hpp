// What hostile_worker inherited, kept beside its channel: so it can write what no channel would.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "ipc/channel.hpp"
#include "ipc/region.hpp"

namespace bulkhead::test {

struct Raw {
  int socket = -1, stream = -1;
  std::byte* region = nullptr;
  std::uint64_t ring_bytes = 0;
  ipc::RegionHeader& header() const { return *reinterpret_cast<ipc::RegionHeader*>(region); }
  std::byte* up() const { return region + ipc::kRegionDataOffset + ring_bytes; }
};

// Returns no socket if the region can't be mapped. Call it before the channel is opened, which closes what it takes.
inline Raw raw_of(const ipc::InheritedDescriptors& inherited) {
  Raw raw;
  raw.socket = ::fcntl(inherited.socket, F_DUPFD_CLOEXEC, 10);
  if (inherited.region >= 0) {
    struct stat status {};
    ::fstat(inherited.region, &status);
    const auto size = static_cast<std::size_t>(status.st_size);
    void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, inherited.region, 0);
    if (base == MAP_FAILED) return {};
    raw.region = static_cast<std::byte*>(base);
    raw.ring_bytes = (size - ipc::kRegionDataOffset) / 2;
  } else {
    raw.stream = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
  }
  return raw;
}

}  // namespace bulkhead::test
