#include "gpu/pipeline_cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "config/base/fault_points.hpp"
#include "config/base/fnv1a.hpp"
#include "config/base/log.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::gpu {
namespace {

// The file: this header, then the driver's blob.
struct Header {
  char magic[8];           // kMagic
  std::uint64_t bytes;     // of the blob
  std::uint64_t checksum;  // of the blob
};
static_assert(sizeof(Header) == 24);
constexpr char kMagic[8] = {'B', 'H', 'P', 'I', 'P', 'E', 'S', '1'};
constexpr std::uint64_t kLargestFileBytes = std::uint64_t{1} << 30;

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

// Reads as many bytes as there are, at most the span's size.
std::size_t read_all(int fd, std::span<std::byte> bytes) {
  if (bulkhead::fault::fails("file.read")) return 0;
  std::size_t total = 0;
  while (total < bytes.size()) {
    const ssize_t got = ::read(fd, bytes.data() + total, bytes.size() - total);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    total += static_cast<std::size_t>(got);
  }
  return total;
}

}  // namespace

std::string pipeline_cache_path(const std::string& folder, const DeviceInfo& info) {
  return fmt::format("{}/pipelines-{:04x}-{:04x}-{}.bin", folder, info.vendor_id, info.device_id,
                     info.driver_uuid);
}

std::vector<std::byte> read_pipeline_cache(const std::string& path) {
  // Non-blocking, so that a pipe in its place can't block the start.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) {
    if (errno != ENOENT)
      spdlog::warn("pipeline cache {}: {}; kernels are compiled again", path, std::strerror(errno));
    return {};
  }
  const auto ignored = [&](const char* why) {
    spdlog::warn("pipeline cache {}: {}; it is ignored and kernels are compiled again", path, why);
    return std::vector<std::byte>{};
  };
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return ignored("not a plain file");
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  Header header{};
  if (file_bytes < sizeof(header) || file_bytes > kLargestFileBytes)
    return ignored("implausible size");
  if (read_all(fd.get(), std::as_writable_bytes(std::span(&header, 1))) != sizeof(header))
    return ignored("unreadable");
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0)
    return ignored("not a pipeline cache");
  if (header.bytes != file_bytes - sizeof(header)) return ignored("truncated");
  std::vector<std::byte> blob(header.bytes);
  if (read_all(fd.get(), blob) != blob.size()) return ignored("unreadable");
  if (fnv1a(blob) != header.checksum) return ignored("its checksum is wrong");
  return blob;
}

Status write_pipeline_cache(const std::string& path, std::span<const std::byte> blob) {
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("pipeline cache: creating {}: {}", folder.string(), failed.message()));
  }
  // Several workers may share the folder: each writes its own file, and the last rename wins. All of the files are
  // complete.
  std::string temporary = path + ".XXXXXX";
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));  // 0600
  if (!fd.valid())
    return errno_error(ErrorCode::kUnavailable, "pipeline cache: creating " + temporary, errno);
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.bytes = blob.size();
  header.checksum = fnv1a(blob);
  const bool written =
      write_all(fd.get(), std::as_bytes(std::span(&header, 1))) && write_all(fd.get(), blob);
  if (!written || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const Error error =
        errno_error(ErrorCode::kUnavailable, "pipeline cache: writing " + path, errno);
    ::unlink(temporary.c_str());
    return error;
  }
  return {};
}

}  // namespace bulkhead::gpu
