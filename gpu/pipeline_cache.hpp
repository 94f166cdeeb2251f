// The file that keeps compiled pipelines between runs, one per device and driver. It is only a cache:
// if anything is wrong with it, the log has a warning and the pipelines are compiled again.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// "<folder>/pipelines-<vendor>-<device>-<driver uuid>.bin"
std::string pipeline_cache_path(const std::string& folder, const DeviceInfo& info);
// The driver's blob, or empty where there is none that is whole. A driver trusts what it is given
// more than it should, so the file carries a checksum.
std::vector<std::byte> read_pipeline_cache(const std::string& path);
// Whole or not at all, readable by the owner alone.
Status write_pipeline_cache(const std::string& path, std::span<const std::byte> blob);

}  // namespace bulkhead::gpu
