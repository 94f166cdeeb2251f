// Blocks that draft tokens (worker/model/graph_draft.cpp) compute what their graphs say in double, from any hidden
// states. BULKHEAD_RANDOM_LANES=1: with the kernels of GPUs, too.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "graph_in_double.hpp"
#include "random_model.hpp"
#include "tests/unit/model/gguf_builder.hpp"
#include "transformer_harness.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::forward {
namespace {

using States = std::vector<std::vector<float>>;

constexpr const char* kArchitectures[] = {"glm4moe", "qwen35", "qwen35moe", "qwen3next"};

// Hidden states of all sizes, since the block norms them.
States some_states(std::size_t count, std::uint32_t width) {
  States states(count, std::vector<float>(width));
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t at = 0; at < width; ++at)
      states[i][at] =
          std::sin(static_cast<float>(i * width + at * at % 97)) * static_cast<float>(i % 5 + 1);
  }
  return states;
}

struct DraftResult {
  TokenId best = 0;
  std::vector<float> logits, hidden;
};

// Runs one step of the sequence whose tokens and states these are, from position `first` on, and returns the results of
// all its columns.
std::vector<DraftResult> run_step(Executor& executor, const std::vector<TokenId>& tokens,
                                  const States& states, std::size_t first, std::size_t count) {
  std::vector<Column> columns;
  std::vector<std::span<const float>> hidden;
  for (std::size_t i = first; i < std::min(first + count, tokens.size()); ++i) {
    Column column{tokens[i], static_cast<std::uint32_t>(i), 0, Output::kLogits};
    column.tells_hidden = true;
    columns.push_back(column);
    hidden.emplace_back(states[i]);
  }
  const std::vector<PageIndex> pages =
      pages_for(executor, static_cast<std::uint32_t>(tokens.size()));
  const std::span<const PageIndex> table(pages);
  engine::Step step{columns, std::span(&table, 1)};
  step.hidden = hidden;
  EXPECT_TRUE(executor.reserve_logits(static_cast<std::uint32_t>(columns.size())).ok());
  const Status submitted = executor.submit(step);
  EXPECT_TRUE(submitted.ok()) << submitted.error().message();
  if (!submitted.ok()) return {};
  const auto outputs = executor.wait();
  EXPECT_TRUE(outputs.ok()) << outputs.error().message();
  std::vector<DraftResult> results;
  for (std::size_t i = 0; outputs.ok() && i < outputs->size(); ++i) {
    const ColumnOutput& output = (*outputs)[i];
    results.push_back({output.best,
                       {output.logits.begin(), output.logits.end()},
                       {output.hidden.begin(), output.hidden.end()}});
  }
  return results;
}

double difference(const std::vector<float>& got, const GraphInDouble::Vector& want) {
  double worst = got.size() == want.size() ? 0 : 1e9, squares = 0;
  for (const double each : want)
    squares += each * each;
  const double size = std::max(std::sqrt(squares / static_cast<double>(want.size())), 1e-3);
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double apart = std::abs(static_cast<double>(got[i]) - want[i]) / size;
    if (!(apart <= worst)) worst = apart;
  }
  return worst;
}

class DraftingBlocks : public TransformerTest {
 protected:
  Loaded load_block(const RandomModel& model, const Options& options) {
    const std::filesystem::path name =
        std::filesystem::temp_directory_path() / ("bulkhead-block-" + std::to_string(::getpid()));
    const std::string path = name.string() + ".gguf";
    std::ofstream(path, std::ios::binary) << model.bytes;
    Loaded loaded = load(name.string(), options);
    std::filesystem::remove(path);
    return loaded;
  }
};

TEST_F(DraftingBlocks, ComputeWhatTheirGraphsSayInDouble) {
  constexpr double kLeastGap = 1e-3, kMost = 1e-4;
  for (const char* const architecture : kArchitectures) {
    std::size_t compared = 0;
    for (std::uint64_t seed = 1; compared < 2 && seed < 12; ++seed) {
      const RandomModel made = random_model_that_drafts(seed, architecture);
      if (made.bytes.empty()) continue;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + made.architecture + ": " +
                   made.description);
      const auto file = model::testing::open_bytes(made.bytes);
      ASSERT_TRUE(file.ok()) << file.error().message();
      ASSERT_TRUE(model::read_model(**file).ok()) << "the model computes without its block";
      const auto graph = model::read_drafting_block(**file);
      ASSERT_TRUE(graph.ok()) << graph.error().message();
      ASSERT_EQ(graph->layers.size(), 1U);
      const std::vector<TokenId> tokens =
          random_text(made, seed, std::min<std::size_t>(made.context - 1, 37));
      const States states = some_states(tokens.size(), graph->embedding);
      GraphInDouble reference(**file, *graph);
      reference.read(tokens, states);
      if (reference.least_gap() < kLeastGap) continue;  // experts chosen by rounding
      for (const bool lanes : {false, true}) {
        if (lanes && std::getenv("BULKHEAD_RANDOM_LANES") == nullptr) continue;
        Options options;
        options.lanes = lanes;
        options.kv = config::KvType::kF32;
        options.chunk = kNarrow;
        options.max_batch = 8;
        options.drafting_block = true;
        const Loaded block = load_block(made, options);
        ASSERT_NE(block.executor, nullptr);
        double worst = 0;
        for (std::size_t at = 0; at < tokens.size(); at += 5) {
          const auto results = run_step(*block.executor, tokens, states, at, 5);
          ASSERT_EQ(results.size(), std::min<std::size_t>(5, tokens.size() - at));
          for (std::size_t i = 0; i < results.size(); ++i) {
            worst = std::max(worst, difference(results[i].logits, reference.logits(at + i)));
            worst = std::max(worst, difference(results[i].hidden, reference.hidden(at + i)));
          }
        }
        std::printf("%s%s: %zu positions within %.6f\n", architecture, lanes ? ", lanes" : "",
                    tokens.size(), worst);
        EXPECT_LT(worst, has_units(*block.executor) ? kMostOfHalves : kMost);
      }
      ++compared;
    }
    EXPECT_GT(compared, 0U) << architecture;
  }
}

TEST_F(DraftingBlocks, NeedAHiddenStateForEachColumn) {
  RandomModel made;
  for (std::uint64_t seed = 1; made.bytes.empty(); ++seed)
    made = random_model_that_drafts(seed, "glm4moe");
  Options options;
  options.drafting_block = true;
  const Loaded block = load_block(made, options);
  ASSERT_NE(block.executor, nullptr);
  Executor& executor = *block.executor;
  EXPECT_TRUE(executor.limits().takes_hidden);
  const Column column{1, 0, 0, Output::kGreedy};
  const std::vector<PageIndex> pages = pages_for(executor, 1);
  const std::span<const PageIndex> table(pages);
  engine::Step step{std::span(&column, 1), std::span(&table, 1)};
  EXPECT_FALSE(executor.submit(step).ok()) << "without one";
  const std::vector<float> state(executor.limits().embedding - 1);
  const std::span<const float> view(state);
  step.hidden = std::span(&view, 1);
  EXPECT_FALSE(executor.submit(step).ok()) << "of another width";
}

}  // namespace
}  // namespace bulkhead::forward
