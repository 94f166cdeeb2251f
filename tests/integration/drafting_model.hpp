// Models with a block that drafts tokens, which is often right although the weights are random.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "tests/integration/made_model.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::test {

// A block of Q8_0: a half, by which 32 numbers are multiplied.
struct BlockOfQ8 {
  std::uint16_t scale = 0;
  std::int8_t numbers[32] = {};
};
static_assert(sizeof(BlockOfQ8) == 34);

// Calls `change` with each block of a tensor, and the block's index.
template <typename Change>
void change_blocks(std::span<char> bytes, const Change& change) {
  for (std::size_t at = 0; at + sizeof(BlockOfQ8) <= bytes.size(); at += sizeof(BlockOfQ8)) {
    BlockOfQ8 block;
    std::memcpy(&block, bytes.data() + at, sizeof block);
    change(block, at / sizeof block);
    std::memcpy(bytes.data() + at, &block, sizeof block);
  }
}

// Makes a model of the preset's shape, with a block. Embeddings are 64 times as large as usual, so that the model's
// next token depends most on the last one; and the block's first product hands the embedding on as it is.
inline void make_drafting_model(const std::string& preset, const std::string& path) {
  auto shape = model_maker::preset(preset);
  ASSERT_TRUE(shape.ok()) << shape.error().message();
  shape->drafting_block = true;
  make_model(*shape, path);
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto file = model::GgufFile::from_memory(std::as_bytes(std::span(bytes)), path);
  ASSERT_TRUE(file.ok()) << file.error().message();
  for (const model::TensorInfo& tensor : (*file)->tensors()) {
    const auto offset = reinterpret_cast<const char*>(tensor.data.data()) - bytes.data();
    const std::span<char> data = std::span(bytes).subspan(offset, tensor.data.size());
    if (tensor.name == "token_embd.weight") {
      ASSERT_EQ(tensor.type, model::TensorType::kQ8_0);
      change_blocks(data, [](BlockOfQ8& block, std::size_t) {
        if (block.scale != 0) block.scale = static_cast<std::uint16_t>(block.scale + (6U << 10));
      });
    } else if (tensor.name.ends_with(".nextn.eh_proj.weight")) {
      ASSERT_EQ(tensor.type, model::TensorType::kQ8_0);
      const std::size_t blocks = tensor.ne[0] / 32;
      change_blocks(data, [blocks](BlockOfQ8& block, std::size_t index) {
        const std::size_t row = index / blocks, first = index % blocks * 32;
        block = {};
        if (row < first || row >= first + 32) return;
        block.scale = 0x3C00;  // 1
        block.numbers[row - first] = 1;
      });
    }
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace bulkhead::test
