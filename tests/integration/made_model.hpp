// Model files with random weights, for tests of what no fixture has.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tools/model-maker/write_model.hpp"

namespace bulkhead::test {

inline void make_model(const model_maker::Shape& shape, const std::string& path) {
  model_maker::Metadata metadata;
  const auto plan = model_maker::plan_tensors(shape, "Q8_0");
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  model_maker::add_model_keys(shape, plan->file_type, metadata);
  const Status vocabulary = model_maker::add_made_vocabulary(shape, metadata);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.error().message();
  const auto written = model_maker::write_model(shape, *plan, metadata, {path, 3, 1, nullptr});
  ASSERT_TRUE(written.ok()) << written.error().message();
}

class MadeModel : public testing::Test {
 protected:
  ~MadeModel() override { std::filesystem::remove(path_); }

  void make(const std::string& preset) {
    auto shape = model_maker::preset(preset);
    ASSERT_TRUE(shape.ok()) << shape.error().message();
    make_model(*shape, path_);
  }

  const std::string path_ = testing::TempDir() + "made_" + std::to_string(::getpid()) + ".gguf";
};

}  // namespace bulkhead::test
