// Records a second one way over the product's channel, by size, beside what one core copies.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/ipc_ports.hpp"

namespace bulkhead::bench {

// Prints a table, too.
nlohmann::json throughput_by_size(const IpcOptions& options);

}  // namespace bulkhead::bench
