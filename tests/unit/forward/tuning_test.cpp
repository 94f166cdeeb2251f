// The tuner's choices and their file, with invented times: which variant the tuner takes, and what it reads from the
// file the next time. It ignores every broken file.
#include "worker/forward/tuning.hpp"

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

constexpr int kBudgetMs = 60'000;

class TuningTest : public ::testing::Test {
 protected:
  void SetUp() override {
    mapping_.lanes = 32;
    shape_.type = k::WeightType::kQ4_0;
    shape_.rows = 2048;
    shape_.groups = 64;
  }

  // Returns the constants of the variant that the tuning has chosen for the product.
  std::vector<std::uint32_t> chosen(Tuning& tuning, std::uint32_t columns = 1) const {
    return tuning.matvec(shape_, columns).spec.constants;
  }
  static Status run(Tuning& tuning, const std::function<Result<double>(std::uint32_t)>& measure) {
    return tuning.run(measure, kBudgetMs);
  }
  // Measures so that `fastest` wins by a fifth.
  Status tune(Tuning& tuning, const std::vector<std::uint32_t>& fastest) {
    return run(tuning, [&](std::uint32_t columns) {
      ++measurements_;
      return chosen(tuning, columns) == fastest ? 80.0 : 100.0;
    });
  }
  std::string text() const {
    std::ifstream file(path_);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }
  void write(const std::string& text) const { std::ofstream(path_) << text; }

  const test::TemporaryFolder folder_{"tuning"};
  const std::string path_ = folder_.path() / "tuning.txt";
  k::Mapping mapping_;
  k::MatvecShape shape_;
  int measurements_ = 0;
};

TEST_F(TuningTest, WithoutAMeasurementTheDefaultIsUsed) {
  Tuning tuning(mapping_, path_);
  EXPECT_EQ(chosen(tuning), k::matvec(mapping_, shape_, 1).spec.constants);
  EXPECT_GT(tuning.unmeasured().size(), 1U);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TuningTest, TakesTheFastestAndRemembersItTheNextTime) {
  const auto variants = product_variants(mapping_, shape_, 1);
  ASSERT_GT(variants.size(), 2U);
  {
    Tuning tuning(mapping_, path_);
    chosen(tuning);
    ASSERT_TRUE(tune(tuning, variants[2].spec.constants).ok());
    EXPECT_EQ(chosen(tuning), variants[2].spec.constants);
    EXPECT_EQ(measurements_, static_cast<int>(variants.size()) + 2)
        << "the best and the usual twice";
    EXPECT_TRUE(tuning.unmeasured().empty());
  }
  Tuning again(mapping_, path_);
  EXPECT_EQ(chosen(again), variants[2].spec.constants);
  measurements_ = 0;
  ASSERT_TRUE(tune(again, variants[1].spec.constants).ok());
  EXPECT_EQ(measurements_, 0) << "it was known";
  // Another model's products are kept beside it.
  shape_.rows = 4096;
  ASSERT_TRUE(tune(again, chosen(again)).ok());
  shape_.rows = 2048;
  Tuning third(mapping_, path_);
  EXPECT_EQ(chosen(third), variants[2].spec.constants);
}

TEST_F(TuningTest, WhatIsHardlyFasterIsNotTaken) {
  const auto variants = product_variants(mapping_, shape_, 1);
  Tuning tuning(mapping_, path_);
  chosen(tuning);
  const Status tuned = run(tuning, [&](std::uint32_t columns) {
    return chosen(tuning, columns) == variants[1].spec.constants ? 99.8 : 100.0;
  });
  ASSERT_TRUE(tuned.ok());
  EXPECT_EQ(chosen(tuning), variants[0].spec.constants);
}

TEST_F(TuningTest, WhatWasFasterOnlyOnceIsNotTaken) {
  const auto variants = product_variants(mapping_, shape_, 1);
  Tuning tuning(mapping_, path_);
  chosen(tuning);
  int of_second = 0;
  const Status tuned = run(tuning, [&](std::uint32_t columns) {
    const bool second = chosen(tuning, columns) == variants[1].spec.constants;
    return second && ++of_second == 1 ? 50.0 : 100.0;
  });
  ASSERT_TRUE(tuned.ok());
  EXPECT_EQ(of_second, 2);
  EXPECT_EQ(chosen(tuning), variants[0].spec.constants);
}

TEST_F(TuningTest, ADeviceWhoseClockRisesTakesTheDefault) {
  const auto variants = product_variants(mapping_, shape_, 1);
  Tuning tuning(mapping_, path_);
  chosen(tuning);
  double clock = 0.3;
  const Status tuned = run(tuning, [&](std::uint32_t) {
    clock = std::min(1.0, clock + 0.2);
    return 100.0 / clock;
  });
  ASSERT_TRUE(tuned.ok());
  EXPECT_EQ(chosen(tuning), variants[0].spec.constants);
}

TEST_F(TuningTest, AMeasurementThatFailsLeavesTheDefault) {
  const auto variants = product_variants(mapping_, shape_, 1);
  Tuning tuning(mapping_, path_);
  chosen(tuning);
  int calls = 0;
  const Status status = run(tuning, [&](std::uint32_t) -> Result<double> {
    if (++calls == 2) return Error(ErrorCode::kUnsupported, "no such kernel");
    return 100.0;
  });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(chosen(tuning), variants[0].spec.constants);
}

TEST_F(TuningTest, ABudgetThatIsOverLeavesTheRestForTheNextTime) {
  Tuning tuning(mapping_, path_);
  chosen(tuning, 1);
  chosen(tuning, 2);
  ASSERT_TRUE(tuning.run([](std::uint32_t) -> Result<double> { return 1.0; }, 0).ok());
  EXPECT_EQ(tuning.measured(), 0U);
}

TEST_F(TuningTest, ABrokenFileIsIgnored) {
  const auto variants = product_variants(mapping_, shape_, 1);
  {
    Tuning tuning(mapping_, path_);
    chosen(tuning);
    ASSERT_TRUE(tune(tuning, variants[1].spec.constants).ok());
  }
  const std::string whole = text();
  ASSERT_FALSE(whole.empty());
  const auto read = [&] {
    Tuning tuning(mapping_, path_);
    return chosen(tuning);
  };
  ASSERT_EQ(read(), variants[1].spec.constants);
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    write(whole.substr(0, cut));
    EXPECT_EQ(read(), variants[0].spec.constants) << "cut at " << cut;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string spoiled = whole;
    spoiled[at] = static_cast<char>(spoiled[at] ^ 1);
    write(spoiled);
    EXPECT_EQ(read(), variants[0].spec.constants) << "spoiled at " << at;
  }
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_EQ(read(), variants[0].spec.constants);
}

TEST_F(TuningTest, EveryVariantCoversWhatItSays) {
  for (const bool rows : {false, true}) {
    mapping_.rows = rows;
    if (rows) mapping_.lanes = 8;
    for (const std::uint32_t columns : {1U, 2U, 8U}) {
      for (const k::Epilogue epilogue :
           {k::Epilogue::kStore, k::Epilogue::kGated, k::Epilogue::kQkv}) {
        if (rows && epilogue == k::Epilogue::kQkv) continue;
        shape_.epilogue = epilogue;
        const auto variants = product_variants(mapping_, shape_, columns);
        EXPECT_EQ(variants[0].spec.constants, k::matvec(mapping_, shape_, columns).spec.constants);
        for (const auto& variant : variants) {
          EXPECT_GT(variant.rows_per_workgroup, 0U);
          EXPECT_EQ(variant.columns_per_workgroup, variants[0].columns_per_workgroup);
          EXPECT_EQ(variant.spec.spirv.data(), variants[0].spec.spirv.data());
          if (epilogue == k::Epilogue::kQkv) {
            EXPECT_EQ(variant.rows_per_workgroup % 2, 0U);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
