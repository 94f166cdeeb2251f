// Mounts that this process moves about in its own mount namespace (open_tree(2), move_mount(2)).
#pragma once

#include <string>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::worker {

// Returns a copy of what is mounted at and below the path. The copy is attached nowhere yet.
Result<UniqueFd> copy_mounts(const std::string& path);

// Attaches such a copy to a file or folder that exists: a folder to a folder, any other file to a file.
Status attach_mounts(const UniqueFd& copy, const std::string& path);

// Makes an empty file to which a copy can be attached.
Status make_empty_file(const std::string& path);

}  // namespace bulkhead::worker
