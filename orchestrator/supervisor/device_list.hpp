// Finds the machine's devices, for `models[].devices: all`. The daemon loads no driver, so it starts the worker
// program, which lists the devices and ends. That process reads no model and no request, so it enters no sandbox.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "config/settings.hpp"

namespace bulkhead::orchestrator {

// Returns the numbers of the GPUs that `listing` calls usable; if there are none, the numbers of the usable CPU
// devices. `listing` is what `bulkhead-worker --list-devices` prints: a line "NUMBER KIND usable" or "NUMBER KIND
// unusable" for each device. Skips other lines, which drivers print. kNotFound: no device is usable.
Result<std::vector<std::string>> usable_devices(std::string_view listing);

// Replaces `all` in settings.models[].devices with the devices' numbers. If a model says `all`, it starts
// `worker_program` and waits at most `patience` for it. kInvalidArgument: a model would have more than
// config::kMostWorkersOfModel workers. Any thread.
Status resolve_all_devices(config::Settings& settings, const std::string& worker_program,
                           std::chrono::milliseconds patience = std::chrono::seconds(30));

}  // namespace bulkhead::orchestrator
