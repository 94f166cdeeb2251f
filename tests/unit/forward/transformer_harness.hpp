// Whole models on the test device: loads them, runs steps as the engine does, and compares rows to
// the last bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernel_harness.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::forward {

using engine::Column;
using engine::ColumnOutput;
using engine::Executor;
using engine::Output;
using engine::PageIndex;
using engine::TokenId;

// Beside its expected continuations: the built-in model in the source tree, the others among the
// fixtures.
std::filesystem::path model_file(const std::string& name);
// Where the fixtures are missing the built-in model serves those tests that any model does for.
std::string or_builtin(const std::string& name);
// The model's continuations by a float64 evaluation.
nlohmann::json expected(const std::string& name);

// The fixture whose columns cost a CPU least: by GPUs' kernels a fifth of those of the built-in model.
inline const std::string kCheapest = "tiny-qwen2-Q8_0";

// Columns of a step where a test's prompt may come in pieces: a CPU compiles GPUs' kernels for each width of a step.
inline constexpr std::uint32_t kNarrow = 8;

struct Options {
  std::uint32_t chunk = 64;
  std::uint32_t max_batch = 4;
  bool lanes = false;
  config::KvType kv = config::KvType::kF16;
  std::uint32_t context = 0;
  std::size_t product_variant = 0;
  std::uint32_t broken_link = 0;
  std::size_t stages = 1;  // more than 1: split over that many devices, all of them the test device
  std::function<void(config::GpuOptimizations&)> gpu = [](config::GpuOptimizations&) {};
};

struct Loaded {
  std::unique_ptr<model::GgufFile> file;
  std::unique_ptr<Executor> executor;
};

class TransformerTest : public KernelTest {
 protected:
  Loaded load(const std::string& name, const Options& options = {});
  // A model for tests that any does for.
  std::string any_model() { return on_cpu() ? or_builtin(kCheapest) : "builtin"; }
};

std::vector<TokenId> some_prompt(std::size_t length);
// Pages in an order that is not rising; three short sequences share none.
std::vector<PageIndex> pages_for(const Executor& executor, std::uint32_t positions,
                                 std::uint32_t sequence = 0);
// A prompt's columns from position `first` on, `count` at most; its last one asks for `output`.
std::vector<Column> columns_of(const std::vector<TokenId>& prompt, std::uint32_t sequence,
                               Output output, std::size_t first = 0, std::size_t count = SIZE_MAX);

struct Row {
  TokenId best = 0;
  float logprob = 0;
  std::vector<float> logits, hidden;
};
std::vector<Row> step(Executor& executor, const std::vector<Column>& columns,
                      const std::vector<std::vector<PageIndex>>& pages);
// Prefills in chunks and decodes greedily; one row for each generated token.
std::vector<Row> generate(Executor& executor, const std::vector<TokenId>& prompt,
                          std::size_t tokens, std::uint32_t chunk, Output output = Output::kGreedy);
// The same, with chunks of these sizes in turn, over and over.
std::vector<Row> generate(Executor& executor, const std::vector<TokenId>& prompt,
                          std::size_t tokens, std::span<const std::uint32_t> chunks, Output output);
// A step that decodes one token for each sequence, after its prompt and the rows that it has, and
// gives each one row more.
void decode_side_by_side(Executor& executor, const std::vector<std::vector<TokenId>>& prompts,
                         const std::vector<std::vector<PageIndex>>& pages,
                         std::vector<std::vector<Row>>& rows);

void expect_same_bits(const std::vector<Row>& a, const std::vector<Row>& b,
                      const std::string& what);
double counter_of(const Executor& executor, const std::string& name);
// Devices without matrix units have no chains, and nothing is compared there.
bool has_units(const Executor& executor);

// The kernels of both kinds of device, and pages of halves and of bytes.
struct Kind {
  bool lanes;
  config::KvType kv;
};
inline constexpr Kind kKinds[] = {{false, config::KvType::kF16},
                                  {true, config::KvType::kF16},
                                  {false, config::KvType::kQ8_0},
                                  {true, config::KvType::kQ8_0}};

}  // namespace bulkhead::forward
