#include "config/base/exact_json.hpp"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/sample.hpp"

namespace bulkhead {
namespace {

TEST(ExactJson, KeepsEveryIntegersDigits) {
  for (const char* text :
       {R"({"b":12345678901234567890123,"a":[-18446744073709551617,{},[]],"":null})",
        "99999999999999999999", R"(["\"\u0001é",true,1.5,-7,18446744073709551615])",
        R"([[99999999999999999999],{"a":{"b":[99999999999999999999,1]}}])"}) {
    const auto value = parse_exact(text);
    EXPECT_EQ(dump_exact(value), text);
  }
  EXPECT_EQ(dump_exact(parse_exact(" { \"a\" : 1 , \"b\" : 2, \"a\" : 3.0 } ")),
            R"({"a":3.0,"b":2})");
  EXPECT_TRUE(parse_exact(R"({"a":)").is_discarded());
  EXPECT_TRUE(parse_exact("1 2").is_discarded());
}

// If the reader compared each name with all names before it, this test would take minutes.
TEST(ExactJson, ReadsObjectsOfAnySizeInTheirOrder) {
  constexpr int kMembers = test::rounds(600'000);
  const auto name_of = [](int i) { return std::to_string(i * 7919LL % kMembers); };
  std::string text = "{";
  for (int i = 0; i < kMembers; ++i)
    text += '"' + name_of(i) + "\":" + std::to_string(i) + ',';
  text += R"("0":[{"a":1}],"7919":"again"})";
  const auto value = parse_exact(text);
  ASSERT_EQ(value.size(), static_cast<std::size_t>(kMembers));
  int i = 0;
  for (const auto& [name, member] : value.items()) {
    ASSERT_EQ(name, name_of(i));
    if (i > 1) {
      ASSERT_EQ(member, i);
    }
    ++i;
  }
  EXPECT_EQ(value.begin()->dump(), R"([{"a":1}])");
  EXPECT_EQ(*++value.begin(), "again");
}

TEST(ExactJson, FindsTheIntegersThatAreRounded) {
  EXPECT_TRUE(is_rounded_integer("12345678901234567890123"));
  EXPECT_TRUE(is_rounded_integer("-9223372036854775809"));
  EXPECT_TRUE(is_rounded_integer(std::string(400, '9')));
  EXPECT_FALSE(is_rounded_integer("18446744073709551615"));
  EXPECT_FALSE(is_rounded_integer("-9223372036854775808"));
  EXPECT_FALSE(is_rounded_integer("100000000000000000000"));
  EXPECT_FALSE(is_rounded_integer("1e40"));
  EXPECT_EQ(digits_of(parse_exact("99999999999999999999")), "99999999999999999999");
  EXPECT_EQ(digits_of(parse_exact("\"99999999999999999999\"")), "");
}

}  // namespace
}  // namespace bulkhead
