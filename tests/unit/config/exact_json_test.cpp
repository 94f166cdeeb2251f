#include "config/base/exact_json.hpp"

#include <string>

#include <gtest/gtest.h>

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

TEST(ExactJson, KnowsWhichIntegersAreRounded) {
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
