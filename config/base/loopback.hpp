// Which addresses of a server's no other machine can reach.
#pragma once

#include <string>

namespace bulkhead {

// "localhost", "::1" (in brackets, too) or an IPv4 address of 127.0.0.0/8. Looks nothing up: any other
// name, "127.evil.example" as well, is none.
bool is_loopback(const std::string& host);

}  // namespace bulkhead
