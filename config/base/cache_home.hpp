// Where this user's programs keep what they can make again.
#pragma once

#include <string>

namespace bulkhead {

// $XDG_CACHE_HOME/bulkhead, or ~/.cache/bulkhead; empty where neither variable is set to an absolute
// path. It need not exist.
std::string cache_home();

}  // namespace bulkhead
