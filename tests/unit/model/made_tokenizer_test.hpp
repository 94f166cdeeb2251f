// A test's tokenizer, of a file that the test writes.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/model/made_tokenizer.hpp"

namespace bulkhead::model::testing {

class MadeTokenizerTest : public ::testing::Test {
 protected:
  void load(const GgufBuilder& file) {
    auto made = tokenizer_of(file);
    ASSERT_TRUE(made.ok()) << made.error().message();
    tokenizer_ = *std::move(made);
  }
  std::vector<TokenId> ids(std::string_view text) const {
    return tokenizer_->encode(text, false, false);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace bulkhead::model::testing
