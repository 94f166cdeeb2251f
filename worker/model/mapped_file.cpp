#include "worker/model/mapped_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "config/base/fault_points.hpp"
#include "worker/model/opened_files.hpp"

namespace bulkhead::model {

Result<MappedFile> MappedFile::open(const std::string& path) {
  if (fault::fails("file.open"))
    return errno_error(ErrorCode::kInvalidArgument, "open " + path, EIO);
  UniqueFd fd = open_to_read(path);
  if (!fd.valid()) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      return Error(ErrorCode::kNotFound,
                   path + ": there is no such file; give the path of a GGUF model file");
    }
    return errno_error(ErrorCode::kInvalidArgument, "open " + path, error);
  }
  return open(std::move(fd), path);
}

Result<MappedFile> MappedFile::open(UniqueFd fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0)
    return errno_error(ErrorCode::kInternal, "stat " + path, errno);
  if (!S_ISREG(status.st_mode)) {
    return Error(ErrorCode::kInvalidArgument,
                 path + (S_ISDIR(status.st_mode)
                             ? ": is a folder; give the path of a GGUF model file (llama.cpp's "
                               "convert_hf_to_gguf.py makes one from a folder of safetensors)"
                             : ": is not a regular file; give the path of a GGUF model file"));
  }
  if (status.st_size == 0) return MappedFile(std::move(fd), {});

  const auto size = static_cast<std::size_t>(status.st_size);
  if (fault::fails("file.map"))
    return errno_error(ErrorCode::kResourceExhausted, "map " + path, ENOMEM);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED)
    return errno_error(ErrorCode::kResourceExhausted, "map " + path, errno);
  return MappedFile(std::move(fd),
                    std::span<const std::byte>(static_cast<const std::byte*>(address), size));
}

void MappedFile::forget(std::span<const std::byte> pages) const {
  // The mapping is shared and read-only, so nothing can be lost. A refusal only costs memory.
  if (!pages.empty())
    (void)::madvise(const_cast<std::byte*>(pages.data()), pages.size(), MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace bulkhead::model
