// The journal's file on disk: how it is opened, read, and replaced as a whole. Callers wait for the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {

// Opens and locks the journal's file. A daemon that is rewriting the journal may rename another file to the name
// between the open and the lock; then this function tries again.
Result<UniqueFd> open_locked_journal(const std::string& path);

// Reads the file from its beginning, but no more than `most` bytes.
Result<std::string> read_journal_file(int fd, const std::string& path, std::size_t most = SIZE_MAX);

// Appends the bytes and makes them durable.
Status append_to_journal(int fd, std::string_view bytes, const std::string& path);

// Writes a whole new file, renames it to the journal's name and puts it into `file`. The new file is locked before it
// gets the name. Until then the old file is unchanged.
Status rewrite_journal(const std::string& path, std::string_view content, UniqueFd& file);

// What the journal's name stands for now.
enum class Named { kOurs, kNothing, kAnother };
Named named_now(int ours, const std::string& path);

// An error that names the setting, the path and the step that failed with errno.
Error journal_file_error(const std::string& path, const char* step);

}  // namespace bulkhead::orchestrator
