// Tests of helpers in config/base/ that have no other test of their own.
#include <cstdint>

#include <gtest/gtest.h>

#include "config/base/json_members.hpp"
#include "config/base/loopback.hpp"
#include "config/base/percent.hpp"

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

TEST(Percent, AnyTwoNumbersAreFrom0To100) {
  EXPECT_EQ(percent_of(0, 0), 0);
  EXPECT_EQ(percent_of(7, 0), 0);
  EXPECT_EQ(percent_of(1, 3), 33);
  EXPECT_EQ(percent_of(3, 3), 100);
  EXPECT_EQ(percent_of(UINT64_MAX - 1, UINT64_MAX), 99);
  EXPECT_EQ(percent_of(UINT64_MAX, 1), 100);  // a worker may report any number
}

TEST(JsonMembers, AreTheTextsAsWritten) {
  JsonMember members[] = {{"a"}, {"b"}, {"c"}, {"none"}};
  find_json_members(
      R"( { "b" : {"z":[1,2],"a":"}\"]"} , "a":1.0 ,"x":"\"a\":5","\u0063":true,"b":[ ] } )",
      members);
  EXPECT_EQ(members[0].text, "1.0");
  EXPECT_EQ(members[1].text, "[ ]");  // the last of two members with this name
  EXPECT_EQ(members[2].text, "true");
  EXPECT_EQ(members[3].text, "");
  JsonMember one[] = {{"a"}};
  // These are not valid, and must not be read past their end.
  for (const char* text : {"", "{", "{\"", "{\"a", "{\"a\"", "{\"a\":", "{\"\\", "{\"a\":\"\\"})
    find_json_members(text, one);
}

}  // namespace
}  // namespace bulkhead
