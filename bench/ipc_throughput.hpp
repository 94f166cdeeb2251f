// Measures records per second in one direction over the product's channel, by size, and the copying speed of one
// core.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/ipc_ports.hpp"

namespace bulkhead::bench {

// Also prints a table.
nlohmann::json throughput_by_size(const IpcOptions& options);

}  // namespace bulkhead::bench
