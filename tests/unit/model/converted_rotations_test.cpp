// The rotations that converters' keys and tables describe.
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/converted_files.hpp"
#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::model {
namespace {

using testing::GgufBuilder;
using testing::has_none;
using ::testing::HasSubstr;
using testing::keys_of;
using testing::open_bytes;
using testing::read;
using testing::refusal_of;
using testing::with_tensors;

// As many entries turn in layers with a window as in the others, unless the file says otherwise.
TEST(ConvertedFiles, TurnAsManyEntriesInWindows) {
  GgufBuilder file = keys_of("olmo2", 4);
  file.u32("olmo2.attention.sliding_window", 16).u32("olmo2.rope.dimension_count", 8);
  file = with_tensors(file, has_none);
  const auto expect_pairs = [&file](std::uint32_t windowed) {
    read(file, [windowed](const ModelGraph& graph) {
      ASSERT_EQ(graph.ropes.size(), 2U);
      EXPECT_EQ(graph.ropes[0].pairs(), 4U);
      EXPECT_EQ(graph.ropes[1].pairs(), windowed);
    });
  };
  expect_pairs(4);
  file.u32("olmo2.rope.dimension_count_swa", 16);
  expect_pairs(8);
}

// Writes a number to all entries of a tensor in the file's bytes.
void fill(const GgufBuilder& file, std::string& bytes, const std::string& name, float number) {
  GgufBuilder copy = file;
  const GgufBuilder::Tensor& tensor = copy.find(name);
  char* at = bytes.data() + (bytes.size() - file.data_bytes + tensor.offset);
  for (std::uint64_t i = 0; i < tensor.ne[0]; ++i)
    std::memcpy(at + i * sizeof number, &number, sizeof number);
}

// The first rotation of a file whose tables have these numbers, or what the file is refused for.
std::pair<Rope, std::string> rope_of(
    const GgufBuilder& file, const std::vector<std::pair<std::string, float>>& tables = {}) {
  std::string bytes = file.bytes();
  for (const auto& [name, number] : tables)
    fill(file, bytes, name, number);
  const auto opened = open_bytes(bytes);
  EXPECT_TRUE(opened.ok()) << opened.error().message();
  const auto graph = read_model(**opened);
  if (!graph.ok()) return {Rope{}, graph.error().message()};
  return {graph->ropes.at(0), ""};
}

// LongRoPE is no matter of the architecture.
TEST(ConvertedFiles, StretchLlamaByLongRope) {
  GgufBuilder file = testing::small_llama();
  file.text("llama.rope.scaling.type", "longrope").f32("llama.rope.scaling.attn_factor", 1.25F);
  file.u32("llama.rope.scaling.original_context_length", 32);
  EXPECT_THAT(rope_of(file).second, HasSubstr("rope_factors_long.weight are missing"));
  file.tensor("rope_factors_short.weight", {8}).tensor("rope_factors_long.weight", {8});
  const auto [rope, refusal] =
      rope_of(file, {{"rope_factors_short.weight", 2}, {"rope_factors_long.weight", 4}});
  ASSERT_EQ(refusal, "");
  EXPECT_EQ(rope.pairing, RopePairing::kAdjacent);
  EXPECT_EQ(rope.short_context, 32U);
  EXPECT_NEAR(rope.magnitude, 1.25, 1e-7);
  ASSERT_EQ(rope.long_frequencies.size(), 8U);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const double plain = std::pow(10'000.0, -2.0 * i / 16);
    EXPECT_NEAR(rope.frequencies[i], plain / 2, 1e-12);
    EXPECT_NEAR(rope.long_frequencies[i], plain / 4, 1e-12);
  }
}

// As in llama.cpp, both a factor and Llama 3's divisors slow pairs down, and a factor of cosines
// needs no YaRN.
TEST(ConvertedFiles, StretchByAFactorAndByDivisors) {
  GgufBuilder file = testing::small_llama();
  file.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4);
  file.f32("llama.rope.scaling.attn_factor", 1.5F).tensor("rope_freqs.weight", {8});
  const auto [rope, refusal] = rope_of(file, {{"rope_freqs.weight", 2}});
  ASSERT_EQ(refusal, "");
  EXPECT_NEAR(rope.magnitude, 1.5, 1e-7);
  for (std::uint32_t i = 0; i < 8; ++i)
    EXPECT_NEAR(rope.frequencies[i], std::pow(10'000.0, -2.0 * i / 16) / 8, 1e-12);
}

TEST(ConvertedFiles, StretchNoHalfOfAHeadByLongRope) {
  GgufBuilder file = keys_of("step35", 1);
  file.u32("step35.attention.sliding_window", 16);
  file.numbers<std::uint8_t>("step35.attention.sliding_window_pattern", ValueType::kBool, {1});
  file.text("step35.rope.scaling.type", "longrope");
  const std::string refusal = refusal_of(file);
  EXPECT_THAT(refusal, HasSubstr("metadata key step35.rope.scaling.type is longrope"));
  EXPECT_THAT(refusal, HasSubstr("none, linear"));
}

TEST(ConvertedFiles, StretchPhi3ByOtherKindsThanLongRope) {
  GgufBuilder file = keys_of("phi3", 1);
  file.f32("phi3.rope.scaling.factor", 4);
  const GgufBuilder plain = with_tensors(file, has_none);
  EXPECT_EQ(rope_of(plain).first.frequencies.at(0), 0.25);
  GgufBuilder both = plain;
  both.tensor("rope_factors_short.weight", {8}).tensor("rope_factors_long.weight", {8});
  EXPECT_THAT(rope_of(both).second, HasSubstr("only one of the two is supported"));
}

}  // namespace
}  // namespace bulkhead::model
