// Tests that go through one model of each family (kFamilies).
#pragma once

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/fixture_models.hpp"
#include "tests/support/fixtures.hpp"

namespace bulkhead::test {

class FamilyTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    model_ = fixtures() / "models" / (std::string(GetParam()) + ".gguf");
    if (!std::filesystem::exists(model_))
      GTEST_SKIP() << "no " << model_ << "; set BULKHEAD_FIXTURES";
  }

  std::filesystem::path model_;
};

// The name of a family's test: the model's, of letters and digits.
inline std::string family_test_name(const testing::TestParamInfo<const char*>& test) {
  std::string name = test.param;
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

}  // namespace bulkhead::test
