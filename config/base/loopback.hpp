// Decides which addresses of a server cannot be reached from other machines.
#pragma once

#include <string>

namespace bulkhead {

// Returns true for "localhost", "::1" (also in brackets) and IPv4 addresses in 127.0.0.0/8. It resolves no names: any
// other name, such as "127.evil.example", is not loopback.
bool is_loopback(const std::string& host);

}  // namespace bulkhead
