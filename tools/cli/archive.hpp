// Makes a tar archive (POSIX.1-1988, "ustar") of a few texts in memory. Each file has a header of 512 bytes and its
// content in blocks of 512 bytes; two empty blocks end the archive.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "config/base/error.hpp"

namespace bulkhead::cli {

struct ArchivedFile {
  std::string name;  // a relative path; the archive keeps its first 100 bytes
  std::string content;
};

// Returns the archive. `modified`: the time of each file in seconds since 1970.
std::string tar_archive(std::span<const ArchivedFile> files, std::uint64_t modified);

// Writes a file that only its owner may read (mode 0600), and replaces an older one.
Status write_private_file(const std::string& path, const std::string& content);

}  // namespace bulkhead::cli
