// Tells a model file from another one that later has its name, without reading it.
#pragma once

#include <string>

namespace bulkhead::orchestrator {

// Size and time of change; "-" where there is no file (the built-in model, or one that was deleted).
std::string file_mark_of(const std::string& path);

}  // namespace bulkhead::orchestrator
