// Qwen3-Next against Qwen 3.5 with experts, which has fixtures: the same weights with value heads in
// another order, in the tensors of either kind of file, give the same continuation.
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/model/gguf_builder.hpp"
#include "transformer_harness.hpp"

namespace bulkhead::forward {
namespace {

using Rows = std::vector<std::string>;  // each of whole blocks

constexpr const char* kFixture = "tiny-qwen35moe-Q8_0";

struct Written {
  std::vector<std::uint64_t> ne;
  std::uint32_t type = 0;
  Rows rows;
};

Rows rows_of(const model::TensorInfo& tensor) {
  const auto* const bytes = reinterpret_cast<const char*>(tensor.data.data());
  Rows rows;
  for (std::uint64_t i = 0; i < tensor.rows(); ++i)
    rows.emplace_back(bytes + i * tensor.row_bytes(), tensor.row_bytes());
  return rows;
}

class Qwen3Next : public TransformerTest {
 protected:
  std::uint32_t number(const std::string& key) const {
    const auto value = source_->get_uint("qwen35moe." + key);
    return value.ok() && *value ? static_cast<std::uint32_t>(**value) : 0;
  }
  // Returns the pieces, which have equal size, in the order of Qwen3-Next's value heads.
  template <typename Pieces>
  Pieces by_neighbours(const Pieces& pieces, std::size_t first, std::size_t of_head) const {
    Pieces made(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(first));
    for (std::size_t head = 0; head < values_; ++head)
      append(made, pieces, first + old_head(head) * of_head, of_head);
    return made;
  }
  template <typename Pieces>
  static void append(Pieces& to, const Pieces& from, std::size_t first, std::size_t count) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(first);
    to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
  }
  std::size_t old_head(std::size_t head) const {
    return head % (values_ / keys_) * keys_ + head / (values_ / keys_);
  }

  void rewrite(bool fused);
  void write(const std::string& path) const;
  void rewrite_layer(const std::string& block, bool fused);

  std::unique_ptr<model::GgufFile> source_;
  std::size_t keys_ = 0, values_ = 0, size_ = 0;
  std::map<std::string, Written> tensors_;
};

void Qwen3Next::rewrite_layer(const std::string& block, bool fused) {
  const auto take = [&](const char* name) {
    auto node = tensors_.extract(block + name);
    EXPECT_FALSE(node.empty()) << name;
    return node.empty() ? Written() : std::move(node.mapped());
  };
  const auto put = [&](const char* name, Written like, Rows rows) {
    like.ne = {like.ne[0], rows.size()};
    like.rows = std::move(rows);
    tensors_[block + name] = std::move(like);
  };
  const std::size_t group = values_ / keys_;
  // By bytes: numbers of a head each, and columns of whole blocks.
  for (const char* name : {"ssm_a", "ssm_dt.bias", "ssm_out.weight"}) {
    Written& tensor = tensors_.at(block + name);
    for (std::string& row : tensor.rows)
      row = by_neighbours(row, 0, row.size() / values_);
  }
  Written& taps = tensors_.at(block + "ssm_conv1d.weight");
  taps.rows = by_neighbours(taps.rows, 2 * keys_ * size_, size_);
  const Written betas = take("ssm_beta.weight"), alphas = take("ssm_alpha.weight");
  Rows both;
  for (std::size_t key = 0; key < keys_; ++key) {
    append(both, by_neighbours(betas.rows, 0, 1), key * group, group);
    append(both, by_neighbours(alphas.rows, 0, 1), key * group, group);
  }
  put("ssm_ba.weight", betas, both);
  const Written qkv = take("attn_qkv.weight"), gates = take("attn_gate.weight");
  const Rows channels = by_neighbours(qkv.rows, 2 * keys_ * size_, size_);
  const Rows gate_rows = by_neighbours(gates.rows, 0, size_);
  if (!fused) {
    put("attn_qkv.weight", qkv, channels);
    put("attn_gate.weight", gates, gate_rows);
    return;
  }
  Rows all;
  for (std::size_t key = 0; key < keys_; ++key) {
    append(all, channels, key * size_, size_);
    append(all, channels, (keys_ + key) * size_, size_);
    append(all, channels, (2 * keys_ + key * group) * size_, group * size_);
    append(all, gate_rows, key * group * size_, group * size_);
  }
  put("ssm_in.weight", qkv, all);
}

void Qwen3Next::rewrite(bool fused) {
  source_ = *model::GgufFile::open(model_file(kFixture).string());
  keys_ = number("ssm.group_count");
  values_ = number("ssm.time_step_rank");
  size_ = number("ssm.state_size");
  ASSERT_GT(keys_, 1U);
  tensors_.clear();
  for (const model::TensorInfo& tensor : source_->tensors()) {
    tensors_[std::string(tensor.name)] = {
        {tensor.ne.begin(), tensor.ne.begin() + tensor.dimensions},
        static_cast<std::uint32_t>(tensor.type),
        rows_of(tensor)};
  }
  for (std::uint32_t layer = 0; layer < number("block_count"); ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    if (tensors_.contains(block + "ssm_a")) rewrite_layer(block, fused);
  }
}

void Qwen3Next::write(const std::string& path) const {
  model::testing::GgufBuilder file;
  file.text("general.architecture", "qwen3next");
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "rope.dimension_count", "expert_count", "expert_used_count", "expert_feed_forward_length",
        "expert_shared_feed_forward_length", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
        "ssm.time_step_rank", "ssm.inner_size", "full_attention_interval"})
    file.u32(std::string("qwen3next.") + key, number(key));
  for (const char* key : {"attention.layer_norm_rms_epsilon", "rope.freq_base"})
    file.f32(std::string("qwen3next.") + key,
             static_cast<float>(**source_->get_float(std::string("qwen35moe.") + key)));
  for (const auto& [name, tensor] : tensors_)
    file.tensor(name, tensor.ne, tensor.type);
  std::string bytes = file.bytes();
  const std::size_t begin = bytes.size() - file.data_bytes;
  for (const auto& placed : file.tensors) {
    std::size_t at = begin + placed.offset;
    for (const std::string& row : tensors_.at(placed.name).rows) {
      std::memcpy(bytes.data() + at, row.data(), row.size());
      at += row.size();
    }
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST_F(Qwen3Next, ComputesWhatQwen35DoesWithTheSameHeads) {
  if (!std::filesystem::exists(model_file(kFixture))) GTEST_SKIP() << "no " << kFixture;
  std::vector<TokenId> prompt = some_prompt(40);
  for (TokenId& token : prompt)
    token %= 1590;
  const Loaded known = load(kFixture);
  ASSERT_NE(known.executor, nullptr);
  const auto want = generate(*known.executor, prompt, 6, 64, Output::kLogits);
  for (const bool fused : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(rewrite(fused));
    const auto name = std::filesystem::temp_directory_path() /
                      ("bulkhead-qwen3next-" + std::to_string(::getpid()));
    write(name.string() + ".gguf");
    const Loaded model = load(name.string());
    std::filesystem::remove(name.string() + ".gguf");
    ASSERT_NE(model.executor, nullptr);
    const auto got = generate(*model.executor, prompt, 6, 64, Output::kLogits);
    ASSERT_EQ(got.size(), want.size());
    // Matrix units round the inputs of products to halves. The two files' products are joined in other ways, so that
    // other sums are rounded.
    const double allowed = has_units(*model.executor) ? 2e-2 : 1e-2;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].best, want[i].best) << i;
      for (std::size_t t = 0; t < got[i].logits.size(); ++t)
        ASSERT_NEAR(got[i].logits[t], want[i].logits[t], allowed) << "fused " << fused;
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
