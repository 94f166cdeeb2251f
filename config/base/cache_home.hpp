// The folder in which this user's programs keep files that they can make again.
#pragma once

#include <string>

namespace bulkhead {

// Returns $XDG_CACHE_HOME/bulkhead, or ~/.cache/bulkhead. Returns an empty text if neither variable is set to an
// absolute path. The folder need not exist.
std::string cache_home();

}  // namespace bulkhead
