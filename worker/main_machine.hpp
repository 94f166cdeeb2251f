// How the worker's program uses the machine apart from opening a device: it lists the devices and chooses cores.
#pragma once

#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::worker {

// Prints a line "NUMBER KIND usable" or "NUMBER KIND unusable" for each device. The daemon reads these lines, because
// it loads no driver itself. Returns the program's exit code.
int list_devices();

// Prints a line "NUMBER TEXT" for each of the texts that names a device as models[].device does. Prints nothing for a
// text that names none. Returns the program's exit code.
int find_devices(const std::vector<std::string>& texts);

// Makes the process run only on these cores from now on; does nothing if `cores` is empty. The process must have no
// other thread yet, because later threads, including a driver's, inherit the cores. kInvalidArgument: the process can
// run on none of them.
Status stay_on(const std::vector<int>& cores);

}  // namespace bulkhead::worker
