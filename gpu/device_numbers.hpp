// Finds devices by the texts that name them in settings, for a program that opens none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::gpu {

// Returns the number of the usable device that each text names as DeviceOptions::selector does; nothing for a text that
// names none. kNotFound, with advice, if there is no Vulkan loader or driver.
Result<std::vector<std::optional<std::uint32_t>>> device_numbers(
    const std::vector<std::string>& texts);

}  // namespace bulkhead::gpu
