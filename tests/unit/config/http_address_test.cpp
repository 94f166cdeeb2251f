#include "config/http_address.hpp"

#include <gtest/gtest.h>

#include "config/config.hpp"

namespace bulkhead::config {
namespace {

std::string parts(const char* text) {
  const Result<HttpAddress> address = parse_http_address(text);
  if (!address.ok()) return "refused";
  return address->host + " " + address->port + " " + address->path + " " + address->authority;
}

TEST(HttpAddress, HasAHostAndPerhapsAPortAndAPath) {
  EXPECT_EQ(parts("http://127.0.0.1:4318"), "127.0.0.1 4318  127.0.0.1:4318");
  EXPECT_EQ(parts("http://collector"), "collector 80  collector");
  EXPECT_EQ(parts("http://collector/"), "collector 80  collector");
  EXPECT_EQ(parts("http://[::1]:4318/v1/traces?a=b"), "::1 4318 /v1/traces?a=b [::1]:4318");
  EXPECT_EQ(parts("http://[::1]/x"), "::1 80 /x [::1]");
}

TEST(HttpAddress, IsRefusedIfItIsNone) {
  for (const char* const wrong :
       {"", "collector:4318", "https://collector", "http://", "http:///path", "http://:80",
        "http://a:", "http://a:b", "http://a:0", "http://a:65536", "http://a:123456", "http://[::1",
        "http://[]", "http://user@a", "http://a b", "http://a\r\nx: y", "http://a/\xc3\xbc"})
    EXPECT_EQ(parts(wrong), "refused") << wrong;
}

TEST(HttpAddress, OfACollectorIsCheckedWithTheSettings) {
  const Result<Loaded> loaded = load({"", {"server.otlp_endpoint=https://collector:4318"}});
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.error().message().find("server.otlp_endpoint"), std::string::npos);
  EXPECT_NE(loaded.error().message().find("begins with http://"), std::string::npos)
      << loaded.error().message();
}

}  // namespace
}  // namespace bulkhead::config
