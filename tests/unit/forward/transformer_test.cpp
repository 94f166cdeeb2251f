// Whole models on the device against the fixtures' float64 continuations, and the numerics contract
// end to end: the same bits for every way of cutting a prompt, every company a sequence keeps in a
// step, and every optimisation switched on or off.
#include "worker/forward/transformer.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "kernel_harness.hpp"
#include "worker/engine/sampler.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/model_config.hpp"

namespace bulkhead::forward {
namespace {

using engine::Column;
using engine::ColumnOutput;
using engine::Executor;
using engine::Output;
using engine::PageIndex;
using engine::TokenId;

std::filesystem::path fixtures() {
  const char* const folder = std::getenv("BULKHEAD_FIXTURES");
  return std::filesystem::path(folder != nullptr ? folder
                                                 : BULKHEAD_SOURCE_DIR "/../shared/fixtures") /
         "models";
}

// Beside its expected continuations: the built-in model in the source tree, the others among the
// fixtures.
std::filesystem::path model_file(const std::string& name) {
  const std::filesystem::path folder =
      name == "builtin" ? std::filesystem::path(BULKHEAD_SOURCE_DIR) / "worker/builtin"
                        : fixtures();
  return folder / (name + ".gguf");
}

// Where the fixtures are missing the built-in model serves those tests that any model does for.
std::string or_builtin(const std::string& name) {
  return std::filesystem::exists(model_file(name)) ? name : "builtin";
}

struct Options {
  std::uint32_t chunk = 64;
  std::uint32_t max_batch = 4;
  bool lanes = false;
  config::KvType kv = config::KvType::kF16;
  std::uint32_t context = 0;
  std::size_t product_variant = 0;
  std::uint32_t broken_link = 0;
  std::function<void(config::GpuOptimizations&)> gpu = [](config::GpuOptimizations&) {};
};

struct Loaded {
  std::unique_ptr<model::GgufFile> file;
  std::unique_ptr<Executor> executor;
};

class TransformerTest : public KernelTest {
 protected:
  Loaded load(const std::string& name, const Options& options = {}) {
    Loaded loaded;
    auto file = model::GgufFile::open(model_file(name).string());
    EXPECT_TRUE(file.ok()) << file.error().message();
    loaded.file = *std::move(file);
    auto config = model::read_model_config(*loaded.file);
    EXPECT_TRUE(config.ok()) << config.error().message();
    TransformerOptions made;
    made.engine.max_batch = options.max_batch;
    made.engine.prefill_chunk = options.chunk;
    made.engine.kv_type = options.kv;
    made.context = options.context;
    made.lanes_mapping = options.lanes;
    made.product_variant = options.product_variant;
    made.broken_link = options.broken_link;
    made.wait_timeout_ms = 60000;
    made.gpu.memory_pool.heap_size_mb = 32;
    made.gpu.memory_pool.num_heaps = 1;
    made.gpu.memory_pool.warmup_sizes = {1};
    made.gpu.blit_queue.staging_buffer_size_mb = 4;
    options.gpu(made.gpu);
    auto executor = make_transformer(device(), *loaded.file, *config, made);
    EXPECT_TRUE(executor.ok()) << executor.error().message();
    if (executor.ok()) loaded.executor = *std::move(executor);
    return loaded;
  }

  static nlohmann::json expected(const std::string& name) {
    std::ifstream file(model_file(name).replace_extension("expected.json"));
    return nlohmann::json::parse(file);
  }
};

// Pages in an order that is not rising; three short sequences share none.
std::vector<PageIndex> pages_for(const Executor& executor, std::uint32_t positions,
                                 std::uint32_t sequence = 0) {
  const std::uint32_t each = executor.limits().page_tokens;
  std::vector<PageIndex> pages((positions + each - 1) / each);
  for (std::uint32_t i = 0; i < pages.size(); ++i)
    pages[i] = (i * 37 + sequence * 17) % executor.limits().total_pages;
  return pages;
}

struct Row {
  TokenId best = 0;
  float logprob = 0;
  std::vector<float> logits;
};

std::vector<Row> step(Executor& executor, const std::vector<Column>& columns,
                      const std::vector<std::vector<PageIndex>>& pages) {
  std::vector<std::span<const PageIndex>> sequences(pages.begin(), pages.end());
  const Status submitted = executor.submit({columns, sequences});
  EXPECT_TRUE(submitted.ok()) << submitted.error().message();
  std::vector<Row> rows;
  if (!submitted.ok()) return rows;
  auto outputs = executor.wait();
  EXPECT_TRUE(outputs.ok()) << outputs.error().message();
  if (!outputs.ok()) return rows;
  for (const ColumnOutput& output : *outputs) {
    rows.push_back(
        {output.best, output.best_logprob, {output.logits.begin(), output.logits.end()}});
  }
  return rows;
}

// Prefills in chunks and decodes greedily; one row for each generated token.
std::vector<Row> generate(Executor& executor, const std::vector<TokenId>& prompt,
                          std::size_t tokens, std::uint32_t chunk,
                          Output output = Output::kGreedy) {
  const auto pages = pages_for(executor, static_cast<std::uint32_t>(prompt.size() + tokens));
  std::vector<Row> rows;
  for (std::uint32_t at = 0; at < prompt.size(); at += chunk) {
    std::vector<Column> columns;
    for (std::uint32_t i = at; i < std::min<std::size_t>(at + chunk, prompt.size()); ++i) {
      columns.push_back({prompt[i], i, 0, i + 1 == prompt.size() ? output : Output::kNone});
    }
    auto made = step(executor, columns, {pages});
    rows.insert(rows.end(), made.begin(), made.end());
  }
  while (rows.size() < tokens && !rows.empty()) {
    const auto position = static_cast<std::uint32_t>(prompt.size() + rows.size() - 1);
    auto made = step(executor, {{rows.back().best, position, 0, output}}, {pages});
    if (made.empty()) break;
    rows.push_back(std::move(made[0]));
  }
  return rows;
}

// Compares with an expected case; returns the largest difference of log-probabilities.
double compare(const std::vector<Row>& rows, const nlohmann::json& greedy,
               const std::string& what) {
  double worst = 0;
  EXPECT_EQ(rows.size(), greedy.size()) << what;
  for (std::size_t i = 0; i < std::min(rows.size(), greedy.size()); ++i) {
    if (greedy[i].value("tie", false) && rows[i].best != greedy[i]["token"].get<TokenId>()) break;
    EXPECT_EQ(rows[i].best, greedy[i]["token"].get<TokenId>()) << what << " step " << i;
    if (rows[i].best != greedy[i]["token"].get<TokenId>()) break;
    const double difference = std::abs(rows[i].logprob - greedy[i]["logprob"].get<double>());
    worst = std::max(worst, difference);
    EXPECT_LT(difference, 2e-2) << what << " step " << i;
  }
  return worst;
}

class Fixture : public TransformerTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(Fixture, ContinuesAsTheDoubleEvaluation) {
  const std::string name = GetParam();
  if (!std::filesystem::exists(model_file(name))) GTEST_SKIP() << "no " << model_file(name);
  const Loaded model = load(name);
  ASSERT_NE(model.executor, nullptr);
  double worst = 0;
  const nlohmann::json want = expected(name);
  ASSERT_GE(want["cases"].size(), 2U);
  for (const auto& each : want["cases"]) {
    const auto prompt = each["prompt_tokens"].get<std::vector<TokenId>>();
    const auto rows = generate(*model.executor, prompt, each["greedy"].size(), 64);
    worst = std::max(worst, compare(rows, each["greedy"],
                                    name + ", prompt of " + std::to_string(prompt.size())));
  }
  RecordProperty("worst_logprob_difference", std::to_string(worst));
  std::printf("%s: log-probabilities within %.5f\n", name.c_str(), worst);
}

INSTANTIATE_TEST_SUITE_P(All, Fixture,
                         ::testing::Values("builtin", "tiny-llama-F16", "tiny-llama-Q8_0",
                                           "tiny-llama-Q4_0", "tiny-llama-Q4_K_M",
                                           "tiny-llama-Q5_K_M", "tiny-qwen2-Q8_0",
                                           "tiny-qwen2-Q4_0", "tiny-qwen2-Q4_K_M",
                                           "tiny-qwen3-BF16", "tiny-qwen3-Q5_K_M",
                                           "tiny-qwen3-Q4_K_M", "tiny-qwen3-IQ4_NL"));

void expect_same_bits(const std::vector<Row>& a, const std::vector<Row>& b,
                      const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].best, b[i].best) << what << " step " << i;
    ASSERT_EQ(std::memcmp(&a[i].logprob, &b[i].logprob, 4), 0) << what << " step " << i;
    ASSERT_EQ(a[i].logits.size(), b[i].logits.size());
    ASSERT_EQ(std::memcmp(a[i].logits.data(), b[i].logits.data(), a[i].logits.size() * 4), 0)
        << what << " step " << i;
  }
}

std::vector<TokenId> some_prompt(std::size_t length) {
  std::vector<TokenId> prompt(length);
  for (std::size_t i = 0; i < length; ++i)
    prompt[i] = static_cast<TokenId>((i * 7919 + 13) % 2000);
  return prompt;
}

// The kernels of both kinds of device, and pages of halves and of bytes.
struct Kind {
  bool lanes;
  config::KvType kv;
};
constexpr Kind kKinds[] = {{false, config::KvType::kF16},
                           {true, config::KvType::kF16},
                           {false, config::KvType::kQ8_0},
                           {true, config::KvType::kQ8_0}};

TEST_F(TransformerTest, ChunksDoNotChangeABit) {
  for (const auto [lanes, kv] : kKinds) {
    Options options;
    options.lanes = lanes;
    options.kv = kv;
    options.chunk = 256;
    const Loaded model = load(or_builtin("tiny-qwen3-Q4_K_M"), options);
    ASSERT_NE(model.executor, nullptr);
    const auto prompt = some_prompt(lanes ? 150 : 300);
    const auto whole = generate(*model.executor, prompt, 3, 256, Output::kLogits);
    for (const std::uint32_t chunk : {1U, 7U, 33U, 100U}) {
      if (lanes && chunk == 1) continue;
      expect_same_bits(generate(*model.executor, prompt, 3, chunk, Output::kLogits), whole,
                       "chunks of " + std::to_string(chunk));
    }
  }
}

TEST_F(TransformerTest, CompanyDoesNotChangeABit) {
  for (const auto [lanes, kv] : kKinds) {
    Options options;
    options.lanes = lanes;
    options.kv = kv;
    const Loaded model = load(or_builtin("tiny-qwen3-Q4_K_M"), options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    std::vector<std::vector<Row>> alone;
    std::vector<std::vector<TokenId>> prompts;
    for (const std::size_t length : {5, 40, 64}) {
      prompts.push_back(some_prompt(length));
      alone.push_back(generate(executor, prompts.back(), 4, 64, Output::kLogits));
    }
    // The three together: their prompts in one step in so far as they fit, then decoding side by
    // side.
    std::vector<std::vector<PageIndex>> pages;
    for (std::uint32_t s = 0; s < 3; ++s)
      pages.push_back(pages_for(executor, 80, s));
    std::vector<std::vector<Row>> together(3);
    std::vector<Column> first;
    for (std::uint32_t s = 0; s < 2; ++s) {
      for (std::uint32_t i = 0; i < prompts[s].size(); ++i) {
        first.push_back(
            {prompts[s][i], i, s, i + 1 == prompts[s].size() ? Output::kLogits : Output::kNone});
      }
    }
    auto rows = step(executor, first, pages);
    ASSERT_EQ(rows.size(), 2U);
    together[0].push_back(rows[0]);
    together[1].push_back(rows[1]);
    std::vector<Column> second;
    for (std::uint32_t s = 0; s < 2; ++s) {
      second.push_back({together[s].back().best, static_cast<std::uint32_t>(prompts[s].size()), s,
                        Output::kLogits});
    }
    for (std::uint32_t i = 0; i < prompts[2].size(); ++i) {
      second.push_back(
          {prompts[2][i], i, 2, i + 1 == prompts[2].size() ? Output::kLogits : Output::kNone});
    }
    rows = step(executor, second, pages);
    ASSERT_EQ(rows.size(), 3U);
    for (std::uint32_t s = 0; s < 3; ++s)
      together[s].push_back(rows[s]);
    for (int round = 0; round < 2; ++round) {
      std::vector<Column> columns;
      for (std::uint32_t s = 0; s < 3; ++s) {
        const auto position =
            static_cast<std::uint32_t>(prompts[s].size() + together[s].size() - 1);
        columns.push_back({together[s].back().best, position, s, Output::kLogits});
      }
      rows = step(executor, columns, pages);
      ASSERT_EQ(rows.size(), 3U);
      for (std::uint32_t s = 0; s < 3; ++s)
        together[s].push_back(rows[s]);
    }
    together[2].resize(3);
    alone[2].resize(3);
    for (std::uint32_t s = 0; s < 3; ++s)
      expect_same_bits(together[s], alone[s], "sequence " + std::to_string(s));
  }
}

TEST_F(TransformerTest, SwitchesDoNotChangeABit) {
  const auto prompt = some_prompt(50);
  const Loaded all_on = load(or_builtin("tiny-qwen2-Q4_0"));
  ASSERT_NE(all_on.executor, nullptr);
  const auto want = generate(*all_on.executor, prompt, 4, 32, Output::kLogits);
  for (int off = 1; off < 8; ++off) {
    Options options;
    options.gpu = [off](config::GpuOptimizations& gpu) {
      gpu.enabled = off != 7;
      gpu.memory_pool.enabled = (off & 1) == 0;
      gpu.blit_queue.enabled = (off & 2) == 0;
      gpu.command_buffer_ring.enabled = (off & 4) == 0;
    };
    const Loaded model = load(or_builtin("tiny-qwen2-Q4_0"), options);
    ASSERT_NE(model.executor, nullptr);
    expect_same_bits(generate(*model.executor, prompt, 4, 32, Output::kLogits), want,
                     "off: " + std::to_string(off));
    for (const auto& part : model.executor->optimizations()) {
      const int bit = part.name == "memory_pool" ? 1 : part.name == "blit_queue" ? 2 : 4;
      EXPECT_EQ(part.active, (off & bit) == 0) << part.name;
    }
  }
}

// What the tuner chooses among.
TEST_F(TransformerTest, VariantsOfProductsDoNotChangeABit) {
  const auto prompt = some_prompt(7);
  for (const bool lanes : {false, true}) {
    Options options;
    options.lanes = lanes;
    options.chunk = 4;
    options.max_batch = 2;
    const Loaded usual = load(or_builtin("tiny-qwen2-Q4_0"), options);
    ASSERT_NE(usual.executor, nullptr);
    const auto want = generate(*usual.executor, prompt, 2, 4, Output::kLogits);
    for (const std::size_t variant : {1U, 2U}) {
      options.product_variant = variant;
      const Loaded model = load(or_builtin("tiny-qwen2-Q4_0"), options);
      ASSERT_NE(model.executor, nullptr);
      expect_same_bits(generate(*model.executor, prompt, 2, 4, Output::kLogits), want,
                       "variant " + std::to_string(variant));
    }
  }
}

TEST_F(TransformerTest, TuningAtTheStartLeavesNoTraceInTheTokens) {
  const auto prompt = some_prompt(20);
  const Loaded usual = load(or_builtin("tiny-qwen2-Q4_0"));
  ASSERT_NE(usual.executor, nullptr);
  Options options;
  options.gpu = [](config::GpuOptimizations& gpu) { gpu.autotune = {true, 100}; };
  const Loaded tuned = load(or_builtin("tiny-qwen2-Q4_0"), options);
  ASSERT_NE(tuned.executor, nullptr);
  expect_same_bits(generate(*tuned.executor, prompt, 3, 32, Output::kLogits),
                   generate(*usual.executor, prompt, 3, 32, Output::kLogits), "tuned");
}

TEST_F(TransformerTest, SteadyDecodingAllocatesNothingOnTheDevice) {
  const Loaded model = load(or_builtin("tiny-qwen2-Q4_0"));
  ASSERT_NE(model.executor, nullptr);
  generate(*model.executor, some_prompt(20), 3, 32);
  const auto counter = [&](const std::string& name) {
    for (const auto& each : model.executor->counters()) {
      if (each.name == name) return each.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0.0;
  };
  const double allocations = counter("device_allocations"), recordings = counter("ring_recordings");
  generate(*model.executor, some_prompt(20), 20, 32);
  EXPECT_EQ(counter("device_allocations"), allocations);
  EXPECT_EQ(counter("ring_recordings"), recordings);
}

double counter_of(const Executor& executor, const std::string& name) {
  for (const auto& each : executor.counters()) {
    if (each.name == name) return each.value;
  }
  ADD_FAILURE() << "no counter " << name;
  return -1;
}

// More than any tile has columns, and each of its own length.
TEST_F(TransformerTest, FortyFourSequencesKeepTheirBits) {
  const std::uint32_t count = 44;
  Options options;
  options.max_batch = count;
  const Loaded model = load("builtin", options);
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  const std::size_t tokens = 3;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::vector<Row>> alone, together(count);
  std::vector<std::vector<PageIndex>> pages;
  for (std::uint32_t s = 0; s < count; ++s) {
    prompts.push_back(some_prompt(2 + s % 5));
    prompts.back()[0] += s;
    alone.push_back(generate(executor, prompts[s], tokens, 64, Output::kLogits));
  }
  for (std::uint32_t s = 0; s < count; ++s) {
    pages.push_back({s});
    std::vector<Column> columns;
    for (std::uint32_t i = 0; i < prompts[s].size(); ++i) {
      columns.push_back(
          {prompts[s][i], i, s, i + 1 == prompts[s].size() ? Output::kLogits : Output::kNone});
    }
    const auto rows = step(executor, columns, pages);
    ASSERT_EQ(rows.size(), 1U);
    together[s] = rows;
  }
  for (std::size_t n = 1; n < tokens; ++n) {
    std::vector<Column> columns;
    for (std::uint32_t s = 0; s < count; ++s) {
      const auto position = static_cast<std::uint32_t>(prompts[s].size() + n - 1);
      columns.push_back({together[s].back().best, position, s, Output::kLogits});
    }
    const auto rows = step(executor, columns, pages);
    ASSERT_EQ(rows.size(), count);
    for (std::uint32_t s = 0; s < count; ++s)
      together[s].push_back(rows[s]);
  }
  for (std::uint32_t s = 0; s < count; ++s)
    expect_same_bits(together[s], alone[s], "sequence " + std::to_string(s));
}

// Two sequences side by side, each step submitted before the one before it is waited for: their
// tokens never go through the host.
TEST_F(TransformerTest, TokensGoFromStepToStepOnTheDevice) {
  for (const bool lanes : {false, true}) {
    Options options;
    options.lanes = lanes;
    const Loaded model = load(or_builtin("tiny-qwen3-Q4_K_M"), options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    ASSERT_EQ(executor.limits().steps_in_flight, 2U);
    const std::size_t tokens = 12;
    const std::vector<std::vector<TokenId>> prompts{some_prompt(5), some_prompt(20)};
    std::vector<std::vector<Row>> want;
    std::vector<ColumnOutput> got;
    for (const auto& prompt : prompts)
      want.push_back(generate(executor, prompt, tokens, 64));

    std::vector<std::vector<PageIndex>> tables;
    for (std::uint32_t s = 0; s < 2; ++s)
      tables.push_back(pages_for(executor, 40, s));
    const std::vector<std::span<const PageIndex>> sequences(tables.begin(), tables.end());
    const auto take = [&](Executor& from) {
      const auto outputs = from.wait();
      ASSERT_TRUE(outputs.ok()) << outputs.error().message();
      ASSERT_EQ(outputs->size(), 2U);
      got.insert(got.end(), outputs->begin(), outputs->end());
    };
    std::vector<Column> columns;
    for (std::uint32_t s = 0; s < 2; ++s) {
      for (std::uint32_t i = 0; i < prompts[s].size(); ++i) {
        columns.push_back(
            {prompts[s][i], i, s, i + 1 == prompts[s].size() ? Output::kGreedy : Output::kNone});
      }
    }
    const auto before = [&](const char* name) { return counter_of(executor, name); };
    const double begun = before("command_buffers_begun"), made = before("device_allocations");
    ASSERT_TRUE(executor.submit({columns, sequences}).ok());
    for (std::uint32_t n = 1; n < tokens; ++n) {
      columns.clear();
      for (std::uint32_t s = 0; s < 2; ++s) {
        Column column;
        column.position = static_cast<std::uint32_t>(prompts[s].size()) + n - 1;
        column.sequence = s;
        column.output = Output::kGreedy;
        column.chosen_by = s;
        columns.push_back(column);
      }
      ASSERT_TRUE(executor.submit({columns, sequences}).ok());
      EXPECT_FALSE(executor.submit({columns, sequences}).ok()) << "a third in flight";
      take(executor);
    }
    take(executor);
    ASSERT_EQ(got.size(), 2 * tokens);
    for (std::size_t n = 0; n < tokens; ++n) {
      for (std::size_t s = 0; s < 2; ++s) {
        EXPECT_EQ(got[2 * n + s].best, want[s][n].best) << s << ", token " << n;
        EXPECT_EQ(got[2 * n + s].best_logprob, want[s][n].logprob);
      }
    }
    EXPECT_EQ(before("device_allocations"), made);
    EXPECT_LE(before("command_buffers_begun") - begun, 4) << "copies of this step's sizes";
  }
}

TEST_F(TransformerTest, RowsOfLogitsComeWhileTheNextStepIsComputed) {
  const Loaded model = load("builtin");
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  const auto prompt = some_prompt(9);
  const auto want = generate(executor, prompt, 6, 64, Output::kLogits);
  // A second sequence computes in the steps between, so the logits' buffer is used all the time.
  const std::vector<std::vector<PageIndex>> tables{pages_for(executor, 40, 0),
                                                   pages_for(executor, 40, 1)};
  const std::vector<std::span<const PageIndex>> sequences(tables.begin(), tables.end());
  std::vector<Column> columns;
  for (std::uint32_t i = 0; i < prompt.size(); ++i)
    columns.push_back({prompt[i], i, 0, i + 1 == prompt.size() ? Output::kLogits : Output::kNone});
  ASSERT_TRUE(executor.submit({columns, sequences}).ok());
  for (std::uint32_t n = 0; n < want.size(); ++n) {
    const Column other{7 * n, n, 1, Output::kLogits};
    ASSERT_TRUE(executor.submit({std::span(&other, 1), sequences}).ok());
    const auto outputs = executor.wait();
    ASSERT_TRUE(outputs.ok());
    ASSERT_EQ(outputs->size(), 1U);
    const std::vector<float> logits((*outputs)[0].logits.begin(), (*outputs)[0].logits.end());
    EXPECT_EQ(logits, want[n].logits) << "token " << n;
    ASSERT_TRUE(executor.wait().ok());
    if (n + 1 == want.size()) break;
    const Column next{want[n].best, static_cast<std::uint32_t>(prompt.size()) + n, 0,
                      Output::kLogits};
    ASSERT_TRUE(executor.submit({std::span(&next, 1), sequences}).ok());
  }
}

// Log-probabilities that the device tells, against those the CPU makes of the same row; greedy and drawn, with the next step
// in flight, alone and beside a sequence that asks for others.
TEST_F(TransformerTest, TheDeviceTellsLogprobabilities) {
  const std::string name = or_builtin("tiny-qwen3-Q4_K_M");
  const Loaded model = load(name);
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  ASSERT_EQ(executor.limits().most_logprobs, 20);
  const auto prompt = some_prompt(9);
  const auto rows = generate(executor, prompt, 10, 64, Output::kLogits);
  engine::Sampler sampler(executor.limits().vocabulary);
  const std::vector<std::vector<PageIndex>> tables{pages_for(executor, 40, 0),
                                                   pages_for(executor, 40, 1)};
  const std::vector<std::span<const PageIndex>> sequences(tables.begin(), tables.end());
  const engine::Choice choice;
  for (const bool company : {false, true}) {
    std::vector<Column> columns;
    for (std::uint32_t i = 0; i < prompt.size(); ++i)
      columns.push_back({prompt[i], i, 0, Output::kNone});
    columns.back().output = Output::kGreedy;
    columns.back().logprobs = 5;
    if (company) columns.push_back({3, 0, 1, Output::kSampled, engine::kByHost, &choice, 20});
    ASSERT_TRUE(executor.submit({columns, sequences}).ok());
    for (std::uint32_t n = 0; n < rows.size(); ++n) {
      columns.assign(1, {0, static_cast<std::uint32_t>(prompt.size()) + n, 0, Output::kGreedy, 0});
      columns[0].logprobs = 5;
      if (company) columns.push_back({0, n + 1, 1, Output::kSampled, 1, &choice, 0});
      if (n + 1 < rows.size()) {
        ASSERT_TRUE(executor.submit({columns, sequences}).ok());
      }
      const auto outputs = executor.wait();
      ASSERT_TRUE(outputs.ok()) << outputs.error().message();
      const ColumnOutput& made = (*outputs)[0];
      const auto want = sampler.logprobs(rows[n].logits, rows[n].best, 5);
      EXPECT_EQ(made.best, rows[n].best);
      EXPECT_NEAR(made.logprob, want.chosen, 1e-5);
      ASSERT_EQ(made.top.size(), 5U);
      for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(made.top[i].token, want.best[i].token) << n << " rank " << i;
        EXPECT_NEAR(made.top[i].value, want.best[i].value, 1e-5);
      }
      if (company) {
        EXPECT_EQ((*outputs)[1].top.size(), n == 0 ? 20U : 0U);
      }
    }
  }
  Column bad{1, 0, 0, Output::kLogits};
  bad.logprobs = 1;
  EXPECT_FALSE(executor.submit({std::span<const Column>(&bad, 1), sequences}).ok());
  bad.output = Output::kGreedy;
  bad.logprobs = 21;
  EXPECT_FALSE(executor.submit({std::span<const Column>(&bad, 1), sequences}).ok());
}

TEST_F(TransformerTest, FloatPagesComeCloser) {
  Options options;
  options.kv = config::KvType::kF32;
  const std::string name = or_builtin("tiny-qwen2-Q8_0");
  const Loaded model = load(name, options);
  ASSERT_NE(model.executor, nullptr);
  const auto each = expected(name)["cases"][1];
  const auto rows =
      generate(*model.executor, each["prompt_tokens"].get<std::vector<TokenId>>(), 32, 64);
  // Matrix units take products' inputs as halves.
  const bool halves = model.executor->numerics_id().find("/units") != std::string::npos;
  EXPECT_LT(compare(rows, each["greedy"], name), halves ? 1.5e-2 : 1e-3);
}

// A step that runs as prompt what another generated: what a restart does.
TEST_F(TransformerTest, ReplayedTokensAreTheSameBits) {
  for (const auto [lanes, kv] : kKinds) {
    Options options;
    options.lanes = lanes;
    options.kv = kv;
    const Loaded model = load(or_builtin("tiny-qwen2-Q4_0"), options);
    ASSERT_NE(model.executor, nullptr);
    auto prompt = some_prompt(37);
    auto made = generate(*model.executor, prompt, 12, 64, Output::kLogits);
    ASSERT_EQ(made.size(), 12U);
    for (std::size_t i = 0; i < 7; ++i)
      prompt.push_back(made[i].best);
    made.erase(made.begin(), made.begin() + 7);
    expect_same_bits(generate(*model.executor, prompt, 5, 64, Output::kLogits), made,
                     std::string("replayed, ") + config::to_string(kv));
  }
}

// Keys and values of eight bits: the same tokens as long as they are not a matter of the last bits, and how far their
// log-probabilities are from the float64 evaluation's, whose keys and values are not rounded.
TEST_F(TransformerTest, PagesOfBytesStayNear) {
  Options options;
  options.kv = config::KvType::kQ8_0;
  for (const char* const name :
       {"builtin", "tiny-llama-F16", "tiny-qwen2-Q8_0", "tiny-qwen3-Q4_K_M"}) {
    if (!std::filesystem::exists(model_file(name))) continue;
    const Loaded model = load(name, options);
    ASSERT_NE(model.executor, nullptr);
    EXPECT_THAT(model.executor->numerics_id(), ::testing::HasSubstr("kv-q8_0"));
    double worst = 0, sum = 0;
    std::size_t compared = 0, all = 0;
    const nlohmann::json want = expected(name);
    for (const auto& each : want["cases"]) {
      const auto rows = generate(*model.executor, each["prompt_tokens"].get<std::vector<TokenId>>(),
                                 each["greedy"].size(), 64);
      ASSERT_EQ(rows.size(), each["greedy"].size());
      all += rows.size();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto& step = each["greedy"][i];
        if (rows[i].best != step["token"].get<TokenId>()) break;
        const double difference = std::abs(rows[i].logprob - step["logprob"].get<double>());
        worst = std::max(worst, difference);
        sum += difference;
        ++compared;
      }
    }
    std::printf(
        "%s, q8_0: %zu of %zu tokens before the first that differs; log-probabilities within %.4f, "
        "%.5f on average\n",
        name, compared, all, worst, sum / static_cast<double>(compared));
    EXPECT_GE(compared * 2, all) << name;
    EXPECT_LT(worst, 0.2) << name;
    EXPECT_LT(sum / static_cast<double>(compared), 0.05) << name;
  }
}

TEST_F(TransformerTest, TheGpusMappingComputesTheSame) {
  Options options;
  options.lanes = true;
  // Rotation in a kernel of its own, in the product with rows that lie paired, and with rows that were paired at load.
  for (const std::string& name : {or_builtin("tiny-qwen3-Q4_K_M"), or_builtin("tiny-llama-Q5_K_M"),
                                  or_builtin("tiny-qwen2-Q4_K_M")}) {
    const Loaded model = load(name, options);
    ASSERT_NE(model.executor, nullptr);
    const auto each = expected(name)["cases"][1];
    const auto rows =
        generate(*model.executor, each["prompt_tokens"].get<std::vector<TokenId>>(), 32, 64);
    compare(rows, each["greedy"], name);
  }
}

TEST_F(TransformerTest, OneDispatchForAllLayersDoesNotChangeABit) {
  if (device().info().kind == gpu::DeviceKind::kCpu)
    GTEST_SKIP() << "workgroups that wait for each other: on GPUs only (BULKHEAD_TEST_DEVICE=auto)";
  const auto prompt = some_prompt(9);
  for (const bool lanes : {false, true}) {
    for (const std::string& name : {std::string("builtin"), or_builtin("tiny-qwen2-Q4_K_M")}) {
      std::vector<std::vector<Row>> made;
      for (const config::PersistentStep setting :
           {config::PersistentStep::kOff, config::PersistentStep::kOn}) {
        Options options;
        options.lanes = lanes;
        options.max_batch = 8;
        options.gpu = [&](config::GpuOptimizations& gpu) { gpu.persistent_step = setting; };
        const Loaded model = load(name, options);
        ASSERT_NE(model.executor, nullptr);
        made.push_back(generate(*model.executor, prompt, 40, 64, Output::kLogits));
        for (const std::uint32_t streams : {2U, 3U, 8U}) {
          std::vector<std::vector<PageIndex>> pages;
          for (std::uint32_t s = 0; s < streams; ++s)
            pages.push_back(pages_for(*model.executor, 32, s));
          for (std::uint32_t i = 0; i < 8; ++i) {
            std::vector<Column> columns;
            for (std::uint32_t s = 0; s < streams; ++s)
              columns.push_back({prompt[(i + s) % 9], i, s, Output::kLogits});
            const auto rows = step(*model.executor, columns, pages);
            ASSERT_EQ(rows.size(), streams);
            made.back().insert(made.back().end(), rows.begin(), rows.end());
          }
        }
      }
      expect_same_bits(made[1], made[0],
                       name + ": all layers in one dispatch" + (lanes ? ", lanes" : ""));
    }
  }
}

// Devices without matrix units have no chains, and nothing is compared there.
bool has_units(const Executor& executor) {
  return executor.numerics_id().find("/units") != std::string::npos;
}

TEST_F(TransformerTest, ChainedKernelsDoNotChangeABit) {
  const auto prompt = some_prompt(9);
  for (const std::string& name :
       {std::string("builtin"), or_builtin("tiny-qwen2-Q4_K_M"), or_builtin("tiny-qwen3-Q4_K_M")}) {
    std::vector<std::vector<Row>> made;
    for (const config::ChainedKernels setting :
         {config::ChainedKernels::kOff, config::ChainedKernels::kOn}) {
      Options options;
      options.max_batch = 16;
      options.gpu = [&](config::GpuOptimizations& gpu) { gpu.chained_kernels = setting; };
      const Loaded model = load(name, options);
      ASSERT_NE(model.executor, nullptr);
      if (!has_units(*model.executor))
        GTEST_SKIP() << "only products by matrix units are chained (BULKHEAD_TEST_DEVICE=auto)";
      made.push_back(generate(*model.executor, prompt, 100, 64, Output::kLogits));
      for (const std::uint32_t streams : {2U, 3U, 8U, 16U}) {
        std::vector<std::vector<PageIndex>> pages;
        for (std::uint32_t s = 0; s < streams; ++s)
          pages.push_back({s});
        for (std::uint32_t i = 0; i < 8; ++i) {
          std::vector<Column> columns;
          for (std::uint32_t s = 0; s < streams; ++s)
            columns.push_back({prompt[(i + s) % 9], i, s, Output::kLogits});
          const auto rows = step(*model.executor, columns, pages);
          ASSERT_EQ(rows.size(), streams);
          made.back().insert(made.back().end(), rows.begin(), rows.end());
        }
      }
      EXPECT_EQ(counter_of(*model.executor, "steps_computed_again"), 0);
    }
    expect_same_bits(made[1], made[0], name + ": chained kernels");
  }
}

// With two steps in flight, of which the second works with what the first one left.
TEST_F(TransformerTest, AStepThatWaitedInVainIsComputedAgain) {
  const auto prompt = some_prompt(9);
  const std::size_t tokens = 6;
  Options options;
  options.broken_link = 7;
  options.gpu = [](config::GpuOptimizations& gpu) {
    gpu.chained_kernels = config::ChainedKernels::kOn;
  };
  const Loaded model = load(or_builtin("tiny-qwen2-Q4_K_M"), options);
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  if (!has_units(executor))
    GTEST_SKIP() << "only products by matrix units are chained (BULKHEAD_TEST_DEVICE=auto)";
  const Loaded other = load(or_builtin("tiny-qwen2-Q4_K_M"));
  ASSERT_NE(other.executor, nullptr);
  const auto want = generate(*other.executor, prompt, tokens, 64);

  const std::vector<PageIndex> table = pages_for(executor, 32);
  const std::vector<std::span<const PageIndex>> sequences{table};
  std::vector<Column> columns;
  for (std::uint32_t i = 0; i < prompt.size(); ++i)
    columns.push_back({prompt[i], i, 0, i == 8 ? Output::kGreedy : Output::kNone});
  ASSERT_TRUE(executor.submit({columns, sequences}).ok());
  std::vector<ColumnOutput> got;
  const auto take = [&] {
    const auto outputs = executor.wait();
    ASSERT_TRUE(outputs.ok()) << outputs.error().message();
    got.insert(got.end(), outputs->begin(), outputs->end());
  };
  for (std::uint32_t n = 1; n < tokens; ++n) {
    Column column;
    column.position = 8 + n;
    column.output = Output::kGreedy;
    column.chosen_by = 0;
    columns = {column};
    ASSERT_TRUE(executor.submit({columns, sequences}).ok());
    take();
  }
  take();
  ASSERT_EQ(got.size(), tokens);
  for (std::size_t n = 0; n < tokens; ++n) {
    EXPECT_EQ(got[n].best, want[n].best) << "token " << n;
    EXPECT_EQ(got[n].best_logprob, want[n].logprob);
  }
  EXPECT_EQ(counter_of(executor, "steps_computed_again"), 2);
}

TEST_F(TransformerTest, TheWarmUpLeavesNoTrace) {
  // The hidden page lies behind the last: page indices up to total_pages - 1 are taken, the next
  // one is refused.
  const Loaded model = load(or_builtin("tiny-qwen2-Q8_0"));
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  const std::vector<PageIndex> last{executor.limits().total_pages - 1},
      hidden{executor.limits().total_pages};
  const std::vector<Column> columns{{1, 0, 0, Output::kGreedy}};
  EXPECT_EQ(step(executor, columns, {last}).size(), 1U);
  const std::span<const PageIndex> pages(hidden);
  const Status refused = executor.submit({columns, std::span(&pages, 1)});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(TransformerTest, RefusesWhatWouldReadElsewhere) {
  const Loaded model = load(or_builtin("tiny-qwen2-Q8_0"));
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  const std::vector<PageIndex> page{0};
  const std::span<const PageIndex> pages(page);
  const auto refused = [&](Column column) {
    const Status status =
        executor.submit({std::span<const Column>(&column, 1), std::span(&pages, 1)});
    return !status.ok() && status.error().code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({executor.limits().vocabulary, 0, 0, Output::kGreedy}));
  EXPECT_TRUE(refused({1, executor.limits().page_tokens, 0, Output::kGreedy}));
  EXPECT_TRUE(refused({1, executor.limits().context, 0, Output::kGreedy}));
  EXPECT_TRUE(refused({1, 0, 1, Output::kGreedy}));
}

TEST_F(TransformerTest, SaysWhenAContextIsTooLong) {
  auto file = model::GgufFile::open(model_file("builtin").string());
  ASSERT_TRUE(file.ok());
  auto config = model::read_model_config(**file);
  ASSERT_TRUE(config.ok());
  TransformerOptions options;
  options.context = 2048;
  auto made = make_transformer(device(), **file, *config, options);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message(), ::testing::HasSubstr("1024"));
  options.context = 1024;
  options.engine.kv_cache_mb = 1;
  made = make_transformer(device(), **file, *config, options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(made.error().message(), ::testing::HasSubstr("engine.kv_cache_mb"));
}

}  // namespace
}  // namespace bulkhead::forward
