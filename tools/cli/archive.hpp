// A tar archive (POSIX.1-1988, "ustar") of a few texts, made in memory: 512 bytes of header for each file, its
// content in blocks of 512 bytes, and two empty blocks at the end.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "config/base/error.hpp"

namespace bulkhead::cli {

struct ArchivedFile {
  std::string name;  // a relative path; of more than 100 bytes the first 100 count
  std::string content;
};

// `modified`: seconds since 1970, of each file.
std::string tar_archive(std::span<const ArchivedFile> files, std::uint64_t modified);

// Writes a file that only its owner may read (mode 0600) over what may be there.
Status write_private_file(const std::string& path, const std::string& content);

}  // namespace bulkhead::cli
