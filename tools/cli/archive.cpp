#include "tools/cli/archive.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "config/base/unique_fd.hpp"

namespace bulkhead::cli {

namespace {

constexpr std::size_t kBlock = 512;

struct Header {
  char name[100];
  char mode[8], uid[8], gid[8];
  char size[12], modified[12];
  char checksum[8];
  char type;
  char link[100];
  char magic[6], version[2];
  char owner[32], group[32];
  char device_major[8], device_minor[8];
  char prefix[155];
  char padding[12];
};
static_assert(sizeof(Header) == kBlock);

// Writes a number into a field as octal digits and a NUL.
template <std::size_t size>
void put_number(char (&field)[size], std::uint64_t value) {
  std::snprintf(field, size, "%0*llo", static_cast<int>(size - 1),
                static_cast<unsigned long long>(value));
}

std::string header_of(const ArchivedFile& file, std::uint64_t modified) {
  Header header{};
  std::memcpy(header.name, file.name.data(), std::min(file.name.size(), sizeof header.name));
  put_number(header.mode, 0600);
  put_number(header.uid, 0);
  put_number(header.gid, 0);
  put_number(header.size, file.content.size());
  put_number(header.modified, modified);
  header.type = '0';
  std::memcpy(header.magic, "ustar", 6);
  std::memcpy(header.version, "00", 2);
  // The checksum counts its own field as spaces.
  std::memset(header.checksum, ' ', sizeof header.checksum);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  std::uint32_t sum = 0;
  for (const char c : bytes)
    sum += static_cast<unsigned char>(c);
  std::snprintf(header.checksum, sizeof header.checksum, "%06o", sum);
  bytes.assign(reinterpret_cast<const char*>(&header), sizeof header);
  return bytes;
}

}  // namespace

std::string tar_archive(std::span<const ArchivedFile> files, std::uint64_t modified) {
  std::string archive;
  for (const ArchivedFile& file : files) {
    archive += header_of(file, modified);
    archive += file.content;
    archive.resize((archive.size() + kBlock - 1) / kBlock * kBlock);
  }
  archive.resize(archive.size() + 2 * kBlock);
  return archive;
}

Status write_private_file(const std::string& path, const std::string& content) {
  const auto failed = [&path](const char* what) {
    return errno_error(ErrorCode::kUnavailable, what + path, errno);
  };
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (fd.get() < 0) return failed("open ");
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return failed("stat ");
  // A file that existed before may be open to all users. A pipe or a device (/dev/null) must stay so.
  if (S_ISREG(status.st_mode) && ::fchmod(fd.get(), 0600) != 0) return failed("chmod ");
  std::size_t written = 0;
  while (written < content.size()) {
    const ssize_t count = ::write(fd.get(), content.data() + written, content.size() - written);
    if (count < 0 && errno != EINTR) return failed("write ");
    if (count > 0) written += static_cast<std::size_t>(count);
  }
  return {};
}

}  // namespace bulkhead::cli
