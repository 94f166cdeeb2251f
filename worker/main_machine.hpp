// What the worker's program does with the machine besides opening a device: it lists the devices and chooses
// cores.
#pragma once

#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::worker {

// Prints a line "NUMBER KIND usable" or "NUMBER KIND unusable" for each device, for the daemon, which loads no driver
// itself. Returns the program's exit code.
int list_devices();

// Lets the process run on these cores alone from now on; does nothing if `cores` is empty. The process must have no
// other thread yet: later threads, a driver's among them, inherit the cores. kInvalidArgument: the process can run
// on none of them.
Status stay_on(const std::vector<int>& cores);

}  // namespace bulkhead::worker
