// Tests of helpers in config/base/ that have no other test of their own.
#include <cstdint>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "config/base/json_members.hpp"
#include "config/base/loopback.hpp"
#include "config/base/percent.hpp"
#include "config/base/worker_users.hpp"

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

TEST(WorkerUsers, AreThoseThatTheNamespaceHas) {
  const std::string whole = "0 0 4294967295\n", small = "0 100000 65536\n",
                    two = "0 0 1\n1 9 70000";
  EXPECT_EQ(worker_ids(whole, whole).value_or(IdRange{}).first, 1879048192U);
  for (const std::string& map : {small, two})
    EXPECT_EQ(worker_ids(map, whole).value_or(IdRange{}).first, 60706U) << map;
  EXPECT_EQ(worker_ids(whole, small).value_or(IdRange{}).first, 60706U);
  for (const char* map : {"0 1000 1\n", "", "0 0 61183\n", "x", "60707 0 100000\n"})
    EXPECT_FALSE(worker_ids(whole, map).has_value()) << map;
}

TEST(WorkerUsers, AreOthersForEachWorkerAndAlwaysTheSameForOne) {
  if (const std::string gap = worker_users_gap(); !gap.empty()) {
    EXPECT_FALSE(worker_user("a").has_value());
    GTEST_SKIP() << "there are none here: " << gap;
  }
  std::set<std::uint32_t> ids;
  for (int i = 0; i < 400; ++i)
    ids.insert(worker_user("worker " + std::to_string(i)).value_or(0));
  EXPECT_EQ(ids.size(), 400U);
  EXPECT_TRUE(ids.contains(worker_user("worker 7").value_or(0)));
  EXPECT_EQ(ids.size(), 400U);
  EXPECT_GE(*ids.begin(), 60706U);
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
