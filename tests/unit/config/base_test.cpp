// What every folder may use of config/base/ and has no test of its own.
#include <gtest/gtest.h>

#include "config/base/loopback.hpp"

namespace bulkhead {
namespace {

TEST(Loopback, ByAddressAndName) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "192.168.1.1", "example.com", "",
                           "127.0.0.1.evil.example", "127.evil.example", "128.0.0.1"}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

}  // namespace
}  // namespace bulkhead
