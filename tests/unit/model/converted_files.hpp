// Files with the keys and tensors that a test's architecture asks for, and what becomes of them.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::model::testing {

// The keys of a small model that nearly every architecture has.
inline GgufBuilder keys_of(const std::string& architecture, std::uint32_t layers) {
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
inline GgufBuilder with_tensors(GgufBuilder file, const Has& has) {
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

inline bool has_none(const std::string& /*name*/) {
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

inline std::string refusal_of(const GgufBuilder& file) {
  const std::string bytes = file.bytes();
  const auto opened = open_bytes(bytes);
  if (!opened.ok()) return opened.error().message();
  const auto graph = read_model(**opened);
  return graph.ok() ? "nothing" : graph.error().message();
}

}  // namespace bulkhead::model::testing
