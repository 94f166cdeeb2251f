#include "config/base/cache_home.hpp"

#include <cstdlib>

namespace bulkhead {

std::string cache_home() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && xdg[0] == '/') return std::string(xdg) + "/bulkhead";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/bulkhead";
  return {};
}

}  // namespace bulkhead
