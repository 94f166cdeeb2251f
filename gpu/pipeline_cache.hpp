// The file that keeps compiled pipelines between runs, one for each device and driver. It is only a cache: if
// anything is wrong with the file, a warning is logged and the pipelines are compiled again.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// Returns "<folder>/pipelines-<vendor>-<device>-<driver uuid>.bin".
std::string pipeline_cache_path(const std::string& folder, const DeviceInfo& info);
// Returns the driver's blob; empty if there is no intact file. Drivers trust this data too much, so the file has a
// checksum.
std::vector<std::byte> read_pipeline_cache(const std::string& path);
// Writes all of the file or nothing. Only the owner can read the file.
Status write_pipeline_cache(const std::string& path, std::span<const std::byte> blob);

}  // namespace bulkhead::gpu
