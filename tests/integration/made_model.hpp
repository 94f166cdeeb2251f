// A model file with random weights, for tests of what no fixture has.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tools/model-maker/write_model.hpp"

namespace bulkhead::test {

class MadeModel : public testing::Test {
 protected:
  ~MadeModel() override { std::filesystem::remove(path_); }

  void make(const std::string& preset) {
    auto shape = model_maker::preset(preset);
    ASSERT_TRUE(shape.ok()) << shape.error().message();
    model_maker::Metadata metadata;
    const auto plan = model_maker::plan_tensors(*shape, "Q8_0");
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    model_maker::add_model_keys(*shape, plan->file_type, metadata);
    ASSERT_TRUE(model_maker::add_made_vocabulary(*shape, metadata).ok());
    const auto written = model_maker::write_model(*shape, *plan, metadata, {path_, 3, 1, nullptr});
    ASSERT_TRUE(written.ok()) << written.error().message();
  }

  const std::string path_ = testing::TempDir() + "made_" + std::to_string(::getpid()) + ".gguf";
};

}  // namespace bulkhead::test
