// Files that a worker opens while it is still the daemon's user, because the user that it becomes
// (worker/sandbox/own_user.hpp) may not open them: the model's, a draft model's, and a chat template. Code that
// opens one of them later by its path gets it from here.
//
// Use it from one thread at a time.
#pragma once

#include <sys/stat.h>

#include <string>
#include <vector>

#include "config/base/unique_fd.hpp"

namespace bulkhead::model {

// Opens the files that can be opened. For any other file, open_to_read() fails later.
void open_early(const std::vector<std::string>& paths);

// Opens a file to read it from its beginning, by the descriptor of open_early() if there is one. If that fails, the
// descriptor is not valid, and errno says why.
UniqueFd open_to_read(const std::string& path);
// Does what stat() does, for the file that open_to_read() opens.
bool look_at(const std::string& path, struct stat& status);

// Closes what open_early() has opened. Files that were opened again stay open.
void close_early();

}  // namespace bulkhead::model
