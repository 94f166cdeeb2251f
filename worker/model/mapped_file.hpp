// A read-only mapping of a whole regular file.
//
// If another program truncates a file while it is mapped, the next access to a lost page raises SIGBUS; there is no
// portable way to turn that into an error. It ends the worker process, never the daemon. Replacing a model by
// renaming a new file over it is safe, because the mapping keeps the old file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::model {

class MappedFile {
 public:
  // kNotFound if there is no such file; kInvalidArgument for a folder, a pipe or a device.
  static Result<MappedFile> open(const std::string& path);
  // The same for an open file; `name` is for messages.
  static Result<MappedFile> open(UniqueFd fd, const std::string& name);

  MappedFile(MappedFile&& other) noexcept
      : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  // Returns the descriptor of the open file, which stays valid even if the file's name is gone.
  int descriptor() const { return fd_.get(); }
  // Releases whole pages of the mapping; a later read brings them back from the file.
  void forget(std::span<const std::byte> pages) const;

 private:
  MappedFile(UniqueFd fd, std::span<const std::byte> bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  UniqueFd fd_;
  std::span<const std::byte> bytes_;
};

}  // namespace bulkhead::model
