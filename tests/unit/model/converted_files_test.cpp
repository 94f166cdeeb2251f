// Files as other converters and other checkpoints make them: with tensors that change nothing, and with keys and tensors
// in another spelling.
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::model {
namespace {

using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::open_bytes;

// The keys of a small model that nearly every architecture has.
GgufBuilder keys_of(const std::string& architecture, std::uint32_t layers) {
  GgufBuilder file;
  const std::string prefix = architecture + ".";
  file.text("general.architecture", architecture);
  file.u32(prefix + "block_count", layers).u32(prefix + "context_length", 64);
  file.u32(prefix + "embedding_length", 32).u32(prefix + "feed_forward_length", 64);
  file.u32(prefix + "attention.head_count", 2).u32(prefix + "attention.head_count_kv", 1);
  file.f32(prefix + "attention.layer_norm_rms_epsilon", 1e-5F).u32(prefix + "vocab_size", 8);
  return file;
}

using Has = std::function<bool(const std::string& name)>;

// Adds the tensors that the keys ask for, and of the optional ones those that `has` names.
GgufBuilder with_tensors(GgufBuilder file, const Has& has) {
  const std::string bytes = file.bytes();
  const auto opened = open_bytes(bytes);
  EXPECT_TRUE(opened.ok()) << opened.error().message();
  const auto graph = imagine_model(**opened, has);
  EXPECT_TRUE(graph.ok()) << graph.error().message();
  if (!graph.ok()) return file;
  std::set<std::string> named;
  for (const TensorRow& row : graph->tensors) {
    if (!named.insert(row.name).second) continue;
    std::vector<std::uint64_t> ne{row.width};
    if (row.rows != 1 || row.slices != 1 || row.plain) ne.push_back(row.rows);
    if (row.slices != 1) ne.push_back(row.slices);
    file.tensor(row.name, std::move(ne));
  }
  return file;
}

bool has_none(const std::string& /*name*/) {
  return false;
}

// Calls `check` with the graph, or with the text of the error.
template <typename Check>
void read(const GgufBuilder& file, Check check) {
  const std::string bytes = file.bytes();
  const auto opened = open_bytes(bytes);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const auto graph = read_model(**opened);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  check(*graph);
}

std::string refusal_of(const GgufBuilder& file) {
  const std::string bytes = file.bytes();
  const auto opened = open_bytes(bytes);
  if (!opened.ok()) return opened.error().message();
  const auto graph = read_model(**opened);
  return graph.ok() ? "nothing" : graph.error().message();
}

// Gemma 4 E2B's and E4B's first checkpoints have matrices of keys and values in layers that use those of others.
TEST(ConvertedFiles, HaveKeysOfGemma4sLayersThatShareKeys) {
  GgufBuilder file = keys_of("gemma4", 3);
  file.u32("gemma4.attention.key_length", 16).u32("gemma4.attention.value_length", 16);
  file.numbers<std::uint8_t>("gemma4.attention.sliding_window_pattern", ValueType::kBool,
                             {0, 0, 0});
  file.u32("gemma4.attention.shared_kv_layers", 1);
  file = with_tensors(file, has_none);
  file.tensor("blk.2.attn_k.weight", {32, 16}).tensor("blk.2.attn_v.weight", {32, 16});
  file.tensor("blk.2.attn_k_norm.weight", {16});
  read(file, [](const ModelGraph& graph) {
    EXPECT_EQ(graph.kv.size(), 2U);
    for (const TensorRow& row : graph.tensors)
      EXPECT_THAT(row.name, ::testing::Not(::testing::StartsWith("blk.2.attn_k")));
  });
  // Another layer's tensors that nothing reads change the result.
  file.tensor("blk.2.attn_q.bias", {32});
  EXPECT_THAT(refusal_of(file), HasSubstr("tensor blk.2.attn_q.bias takes part in a computation"));
}

}  // namespace
}  // namespace bulkhead::model
