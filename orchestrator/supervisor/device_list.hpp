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

// Finds out which devices the settings name, if models share a bound on their devices' memory and one device may be
// named in several ways ("auto", "0", "H200"). For that it starts `worker_program` and waits at most `patience` for it.
// An error says why that failed; each text then counts as a device of its own. Any thread.
Status number_devices(const config::Settings& settings, const std::string& worker_program,
                      std::chrono::milliseconds patience = std::chrono::seconds(30));

// Replaces the texts that number_devices() has found by the devices' numbers, so that equal texts mean the same device.
// Any thread.
std::vector<std::string> numbered(std::vector<std::string> devices);

}  // namespace bulkhead::orchestrator
