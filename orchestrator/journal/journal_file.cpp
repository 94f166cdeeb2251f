#include "orchestrator/journal/journal_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "orchestrator/journal/record.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr int kLockTries = 8;

Status write_to_journal(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return journal_file_error(path, "write");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

// Refuses a file that is no journal, before the journal changes the file or reads it into memory.
Status check_beginning(int fd, const std::string& path) {
  BULKHEAD_TRY(const std::string magic, read_journal_file(fd, path, kJournalMagic.size()));
  const auto read = read_journal(magic, [](const JournalRecord&) {});
  return read.ok() ? Status() : read.error().within("isolation.journal_path: " + path);
}

Result<UniqueFd> write_beside(const std::string& beside, std::string_view content) {
  UniqueFd fd(::open(beside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly));
  if (!fd.valid()) return journal_file_error(beside, "open");
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return journal_file_error(beside, "lock");
  BULKHEAD_RETURN_IF_ERROR(write_to_journal(fd.get(), content, beside));
  if (::fdatasync(fd.get()) != 0) return journal_file_error(beside, "fdatasync");
  return fd;
}

}  // namespace

Error journal_file_error(const std::string& path, const char* step) {
  return errno_error(ErrorCode::kUnavailable,
                     fmt::format("isolation.journal_path: {}: {}", path, step), errno);
}

Result<std::string> read_journal_file(int fd, const std::string& path, std::size_t most) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return journal_file_error(path, "stat");
  std::string bytes(std::min(static_cast<std::size_t>(info.st_size), most), '\0');
  std::size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t read =
        ::pread(fd, bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return journal_file_error(path, "read");
    if (read == 0) break;
    got += static_cast<std::size_t>(read);
  }
  bytes.resize(got);
  return bytes;
}

Status append_to_journal(int fd, std::string_view bytes, const std::string& path) {
  BULKHEAD_RETURN_IF_ERROR(write_to_journal(fd, bytes, path));
  if (::fdatasync(fd) != 0) return journal_file_error(path, "fdatasync");
  return {};
}

Result<UniqueFd> open_locked_journal(const std::string& path) {
  for (int i = 0; i < kLockTries; ++i) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kOwnerOnly));
    if (!fd.valid() && errno == ELOOP) {
      return Error(
          ErrorCode::kUnsupported,
          fmt::format("isolation.journal_path: {} is a symbolic link; name the file itself", path));
    }
    if (!fd.valid()) return journal_file_error(path, "open");
    struct stat ours {
    }, named{};
    if (::fstat(fd.get(), &ours) != 0) return journal_file_error(path, "stat");
    if (!S_ISREG(ours.st_mode)) {
      return Error(ErrorCode::kUnsupported,
                   fmt::format("isolation.journal_path: {} is no regular file", path));
    }
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return journal_file_error(path, "lock");
      return Error(ErrorCode::kUnavailable,
                   fmt::format("isolation.journal_path: {} is in use by another daemon; each needs "
                               "a file of its own",
                               path));
    }
    if (::stat(path.c_str(), &named) != 0 || named.st_ino != ours.st_ino) continue;
    BULKHEAD_RETURN_IF_ERROR(check_beginning(fd.get(), path));
    if (::fchmod(fd.get(), kOwnerOnly) != 0) return journal_file_error(path, "chmod");
    return fd;
  }
  return Error(ErrorCode::kUnavailable,
               fmt::format("isolation.journal_path: {} keeps changing its name", path));
}

Named named_now(int ours, const std::string& path) {
  struct stat mine {
  }, there{};
  if (::fstat(ours, &mine) != 0) return Named::kNothing;
  if (::lstat(path.c_str(), &there) != 0) return errno == ENOENT ? Named::kNothing : Named::kOurs;
  return mine.st_ino == there.st_ino && mine.st_dev == there.st_dev ? Named::kOurs
                                                                    : Named::kAnother;
}

Status rewrite_journal(const std::string& path, std::string_view content, UniqueFd& file) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? std::string(".") : parent.string();
  const std::string beside = path + ".new";
  ::unlink(beside.c_str());  // a file of a daemon that died here
  Result<UniqueFd> written = write_beside(beside, content);
  // It is opened before the rename: afterwards, a lack of descriptors would leave a file with the journal's name that
  // this process takes for another's.
  const UniqueFd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Status status = written.ok() ? Status() : Status(written.error());
  if (status.ok() && !directory.valid()) status = journal_file_error(folder, "open");
  if (status.ok() && ::rename(beside.c_str(), path.c_str()) != 0)
    status = journal_file_error(beside, "rename");
  if (!status.ok()) {
    ::unlink(beside.c_str());  // the new file may be what fills the disk
    return status;
  }
  file = *std::move(written);
  if (::fsync(directory.get()) != 0) return journal_file_error(folder, "fsync");
  return {};
}

}  // namespace bulkhead::orchestrator
