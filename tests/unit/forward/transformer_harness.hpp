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

// Returns the path of a model's file: the built-in model is in the source tree, the others are
// among the fixtures. The expected continuations lie beside it.
std::filesystem::path model_file(const std::string& name);
// Returns `name`, or the built-in model if the fixtures are missing, for tests that can use any
// model.
std::string or_builtin(const std::string& name);
// Returns the model's continuations by a float64 evaluation.
nlohmann::json expected(const std::string& name);

// The fixture whose columns a CPU computes fastest: with the kernels of GPUs in a fifth of the
// built-in model's time.
inline const std::string kCheapest = "tiny-qwen2-Q8_0";

// The most columns of a step in tests that may cut their prompt. A CPU compiles GPUs' kernels for each width of a
// step, so few widths save time.
inline constexpr std::uint32_t kNarrow = 8;

struct Options {
  std::uint32_t chunk = 64;
  std::uint32_t max_batch = 4;
  bool lanes = false;
  config::KvType kv = config::KvType::kF16;
  // BULKHEAD_TEST_MATRIX_ATTENTION takes its place.
  config::MatrixAttention matrix_attention = config::MatrixAttention::kAuto;
  std::uint32_t context = 0;
  std::size_t product_variant = 0;
  std::uint32_t broken_link = 0;
  std::size_t stages = 1;  // more than 1: split over that many devices, all of them the test device
  bool drafting_block = false;  // the file's block that drafts tokens, in place of its model
  std::function<void(config::GpuOptimizations&)> gpu = [](config::GpuOptimizations&) {};
};

struct Loaded {
  std::unique_ptr<model::GgufFile> file;
  std::unique_ptr<Executor> executor;
};

class TransformerTest : public KernelTest {
 protected:
  Loaded load(const std::string& name, const Options& options = {});
  // Returns a model for tests that can use any model.
  std::string any_model() { return on_cpu() ? or_builtin(kCheapest) : "builtin"; }
};

std::vector<TokenId> some_prompt(std::size_t length);
// Returns pages in an order that is not rising. Three short sequences have no page in common.
std::vector<PageIndex> pages_for(const Executor& executor, std::uint32_t positions,
                                 std::uint32_t sequence = 0);
// Returns a prompt's columns from position `first` on, `count` at most; the prompt's last one asks
// for `output`.
std::vector<Column> columns_of(const std::vector<TokenId>& prompt, std::uint32_t sequence,
                               Output output, std::size_t first = 0, std::size_t count = SIZE_MAX);

struct Row {
  TokenId best = 0;
  float logprob = 0;
  std::vector<float> logits, hidden;
};
// `states`: empty for the slots whose numbers are the sequences'.
std::vector<Row> step(Executor& executor, const std::vector<Column>& columns,
                      const std::vector<std::vector<PageIndex>>& pages,
                      std::vector<engine::StateUse> states = {});
// Computes the prompt in steps of `chunk` columns, and then chooses `tokens` tokens, each time the most likely one.
// Returns one row for each chosen token.
std::vector<Row> generate(Executor& executor, const std::vector<TokenId>& prompt,
                          std::size_t tokens, std::uint32_t chunk, Output output = Output::kGreedy);
// Does the same with steps of chunks[0], chunks[1], ... columns. After the last size the first one follows again.
std::vector<Row> generate(Executor& executor, const std::vector<TokenId>& prompt,
                          std::size_t tokens, std::span<const std::uint32_t> chunks, Output output);
// Computes the prompt in one step, and then the tokens of `known`, which are the rows of generate(): each step has one
// to three drafts, of which only the last is wrong. Returns the rows up to each step's wrong draft.
std::vector<Row> generate_with_drafts(Executor& executor, const std::vector<TokenId>& prompt,
                                      const std::vector<Row>& known);
// Runs a step that decodes one token for each sequence, after its prompt and the rows that it has,
// and appends a row to each.
void decode_side_by_side(Executor& executor, const std::vector<std::vector<TokenId>>& prompts,
                         const std::vector<std::vector<PageIndex>>& pages,
                         std::vector<std::vector<Row>>& rows);

void expect_same_bits(const std::vector<Row>& a, const std::vector<Row>& b,
                      const std::string& what);
double counter_of(const Executor& executor, const std::string& name);
// Returns whether the device has matrix units. Devices without them have no chains, so tests of
// chains compare nothing there.
bool has_units(const Executor& executor);
// Matrix units round the inputs of products to halves. Results of random models then differ from the evaluation in
// double by 0.0007 to 0.018 of the results' root mean square (NVIDIA H200, 38 models).
inline constexpr double kMostOfHalves = 0.05;

// A kind of device, whose kernels a test uses, and a format of pages.
struct Kind {
  bool lanes;
  config::KvType kv;
};
inline constexpr Kind kKinds[] = {{false, config::KvType::kF16},
                                  {true, config::KvType::kF16},
                                  {false, config::KvType::kQ8_0},
                                  {true, config::KvType::kQ8_0}};

}  // namespace bulkhead::forward
