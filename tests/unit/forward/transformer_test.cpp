// Compares whole models on the device with the fixtures' float64 continuations, and tests what loading
// and submitting refuse.
#include "worker/forward/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <gmock/gmock.h>

#include "tests/support/fixture_models.hpp"
#include "transformer_harness.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::forward {
namespace {

// Differences of log-probabilities. The largest depends on how roundings happen to add up at a single position, so the
// root of the mean square says more about a change of roundings.
struct Differences {
  double worst = 0, squares = 0;
  std::size_t count = 0;

  void add(double difference) {
    worst = std::max(worst, difference);
    squares += difference * difference;
    ++count;
  }
  double root_mean_square() const { return std::sqrt(squares / static_cast<double>(count)); }
};

// Compares with an expected case, and adds the differences to `all`.
void compare(const std::vector<Row>& rows, const nlohmann::json& greedy, const std::string& what,
             Differences& all) {
  EXPECT_EQ(rows.size(), greedy.size()) << what;
  for (std::size_t i = 0; i < std::min(rows.size(), greedy.size()); ++i) {
    if (greedy[i].value("tie", false) && rows[i].best != greedy[i]["token"].get<TokenId>()) break;
    EXPECT_EQ(rows[i].best, greedy[i]["token"].get<TokenId>()) << what << " step " << i;
    if (rows[i].best != greedy[i]["token"].get<TokenId>()) break;
    const double difference = std::abs(rows[i].logprob - greedy[i]["logprob"].get<double>());
    all.add(difference);
    EXPECT_LT(difference, 2e-2) << what << " step " << i;
  }
}

class Fixture : public TransformerTest, public ::testing::WithParamInterface<const char*> {
 protected:
  // worker_integration_test computes all fixtures on a CPU, against the same expected tokens and log-probabilities.
  bool left_out() {
    const std::string_view name = GetParam();
    return on_cpu() && name != "builtin" && std::getenv("BULKHEAD_EVERY_FIXTURE") == nullptr;
  }
};

TEST_P(Fixture, ContinuesAsTheDoubleEvaluation) {
  const std::string name = GetParam();
  if (!std::filesystem::exists(model_file(name))) GTEST_SKIP() << "no " << model_file(name);
  if (left_out())
    GTEST_SKIP() << "worker_integration_test computes it; BULKHEAD_EVERY_FIXTURE=1 does so here";
  const Loaded model = load(name);
  ASSERT_NE(model.executor, nullptr);
  Differences all;
  const nlohmann::json want = expected(name);
  ASSERT_GE(want["cases"].size(), 2U);
  for (const auto& each : want["cases"]) {
    const auto prompt = each["prompt_tokens"].get<std::vector<TokenId>>();
    // worker_integration_test computes these on a CPU.
    if (prompt.size() > 64 && name != "builtin" && on_cpu()) continue;
    const auto rows = generate(*model.executor, prompt, each["greedy"].size(), 64);
    compare(rows, each["greedy"], name + ", prompt of " + std::to_string(prompt.size()), all);
  }
  RecordProperty("worst_logprob_difference", std::to_string(all.worst));
  std::printf("%s: log-probabilities within %.5f, root of the mean square %.5f\n", name.c_str(),
              all.worst, all.root_mean_square());
}

INSTANTIATE_TEST_SUITE_P(Builtin, Fixture, ::testing::Values("builtin"));
INSTANTIATE_TEST_SUITE_P(All, Fixture, ::testing::ValuesIn(test::kFixtureModels));

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
  const double allowed = has_units(*model.executor) ? 1.5e-2 : 1e-3;
  Differences all;
  compare(rows, each["greedy"], name, all);
  EXPECT_LT(all.worst, allowed);
}

class PagesOfBytes : public TransformerTest,
                     public ::testing::WithParamInterface<config::MatrixAttention> {};

// Keys and values of eight bits give the same tokens, as long as the choice does not depend on the last bits. The
// test bounds the difference of log-probabilities from the float64 evaluation, whose keys and values are not rounded.
TEST_P(PagesOfBytes, StayNear) {
  if (GetParam() == config::MatrixAttention::kOn && on_cpu()) GTEST_SKIP() << "a GPU's";
  Options options;
  options.kv = config::KvType::kQ8_0;
  options.matrix_attention = GetParam();
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
      const auto prompt = each["prompt_tokens"].get<std::vector<TokenId>>();
      if (prompt.size() > 64 && std::string_view(name) != "builtin" && on_cpu()) continue;
      const std::size_t tokens = on_cpu() ? 16 : each["greedy"].size();
      const auto rows = generate(*model.executor, prompt, tokens, 64);
      ASSERT_EQ(rows.size(), tokens);
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

INSTANTIATE_TEST_SUITE_P(MatrixAttention, PagesOfBytes,
                         ::testing::Values(config::MatrixAttention::kAuto,
                                           config::MatrixAttention::kOn),
                         [](const auto& each) {
                           return each.param == config::MatrixAttention::kOn ? "On" : "Auto";
                         });

class GpusMapping : public TransformerTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(GpusMapping, ComputesTheSame) {
  Options options;
  options.lanes = true;
  if (on_cpu()) options.chunk = kNarrow;
  const std::string name = or_builtin(GetParam());
  const Loaded model = load(name, options);
  ASSERT_NE(model.executor, nullptr);
  const auto each = expected(name)["cases"][1];
  // A CPU takes 40 ms for each column.
  const std::ptrdiff_t tokens = on_cpu() ? 6 : 32;
  const auto rows = generate(*model.executor, each["prompt_tokens"].get<std::vector<TokenId>>(),
                             static_cast<std::size_t>(tokens), options.chunk);
  const auto greedy = each["greedy"].begin();
  Differences all;
  compare(rows, nlohmann::json(std::vector<nlohmann::json>(greedy, greedy + tokens)), name, all);
}

// The models have a rotation in a separate kernel, in the product with rows that are stored as pairs, and
// with rows that are paired at load; windows and caps; heads of two sizes and layers that share keys and
// values; experts and sinks; gated delta nets.
INSTANTIATE_TEST_SUITE_P(Some, GpusMapping,
                         ::testing::Values("tiny-qwen3-Q4_K_M", "tiny-llama-Q5_K_M",
                                           "tiny-qwen2-Q4_K_M", "tiny-gemma2-Q5_K_M",
                                           "tiny-gemma4-Q4_K_M", "tiny-gemma4moe-Q8_0",
                                           "tiny-gpt-oss-MXFP4", "tiny-qwen35-Q4_K_M",
                                           "tiny-qwen35moe-Q8_0"));

TEST_F(TransformerTest, TheWarmUpLeavesNoTrace) {
  // The hidden page lies after the last: page indices up to total_pages - 1 are taken, the next
  // one is refused.
  const Loaded model = load(or_builtin("tiny-qwen2-Q8_0"));
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  const std::vector<PageIndex> last{executor.limits().pages_at_first() - 1},
      hidden{executor.limits().total_pages};
  const std::vector<Column> columns{{1, 0, 0, Output::kGreedy}};
  EXPECT_EQ(step(executor, columns, {last}).size(), 1U);
  const std::span<const PageIndex> pages(hidden);
  const Status refused = executor.submit({columns, std::span(&pages, 1)});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(TransformerTest, WeightsHaveTheSameNameWhateverMemoryHeldBefore) {
  const Loaded first = load("builtin");
  ASSERT_NE(first.executor, nullptr);
  // The C library gives the second buffer the memory of the first one, and hands that memory out
  // again later.
  for (int i = 0; i < 2; ++i)
    std::ranges::fill(empty(24 << 20).mapped(), std::byte{0xa5});
  const Loaded second = load("builtin");
  ASSERT_NE(second.executor, nullptr);
  EXPECT_THAT(second.executor->numerics_id(), ::testing::HasSubstr("/weights-"));
  EXPECT_EQ(second.executor->numerics_id(), first.executor->numerics_id());
  const std::string other = or_builtin("tiny-llama-F16");
  if (other == "builtin") return;
  EXPECT_NE(load(other).executor->numerics_id(), first.executor->numerics_id());
}

// The executor makes these sums beside steps.
TEST_F(TransformerTest, PagesOfEqualTokensHaveEqualSums) {
  for (const Kind& kind : kKinds) {
    // On a CPU, GPUs' kernels compute only the cheapest model, with pages of halves.
    const bool few = on_cpu() && kind.lanes;
    if (few && kind.kv == config::KvType::kQ8_0) continue;
    Options options;
    options.lanes = kind.lanes;
    options.kv = kind.kv;
    if (on_cpu()) options.chunk = kNarrow;
    const Loaded model = load(or_builtin(few ? kCheapest : "tiny-deepseek2-Q8_0"), options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    const std::uint32_t size = executor.limits().page_tokens, width = std::min(32U, options.chunk);
    ASSERT_GE(executor.limits().most_pages_summed, 4U);
    std::vector<TokenId> prompt = some_prompt(2 * size);
    for (TokenId& token : prompt)
      token %= executor.limits().vocabulary - 1;
    std::vector<TokenId> other = prompt;
    other.back() ^= 1;  // the last token of the second page
    const std::vector<PageIndex> a = pages_for(executor, 2 * size, 0);
    const std::vector<PageIndex> b = pages_for(executor, 2 * size, 1);
    const auto compute = [&](const std::vector<TokenId>& tokens,
                             const std::vector<PageIndex>& pages, std::size_t from = 0) {
      for (std::size_t at = from; at < tokens.size(); at += width)
        step(executor, columns_of(tokens, 0, Output::kGreedy, at, width), {pages});
    };
    const auto sums_of = [&](const std::vector<PageIndex>& pages) {
      EXPECT_TRUE(executor.start_sums(pages, executor.weight_bytes()).ok());
      const auto sums = executor.finish_sums();
      EXPECT_TRUE(sums.ok());
      return std::vector<engine::PageSum>(sums->begin(), sums->end());
    };
    compute(prompt, a);
    const auto first = sums_of(a);
    EXPECT_NE(first[0], first[1]);
    compute(prompt, b);
    EXPECT_EQ(sums_of(b), first);
    compute(other, b, other.size() - width);  // the tokens before it are the same
    const auto changed = sums_of({b[1], b[0]});
    EXPECT_EQ(changed[1], first[0]);
    EXPECT_NE(changed[0], first[1]);
    EXPECT_EQ(sums_of(a), first);
    for (int i = 0; i < 40; ++i)
      sums_of({});
    EXPECT_GT(counter_of(executor, "weights_checked_total"), 0);
  }
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

TEST(Sizes, AStepHasAsManySequencesAsTheDeviceAndTheModelAllow) {
  auto file = model::GgufFile::open(model_file("builtin").string());
  ASSERT_TRUE(file.ok());
  auto graph = model::read_model(**file);
  ASSERT_TRUE(graph.ok());
  const auto batch = [&](const DeviceSize& device, std::uint32_t asked = 0) {
    config::EngineSettings engine;
    engine.max_batch = asked;
    return with_sizes(engine, **file, *graph, device).max_batch;
  };
  constexpr std::uint64_t kMebibyte = 1 << 20;
  EXPECT_EQ(batch({.cpu = true, .memory_bytes = 1 << 30}), 16U);
  EXPECT_EQ(batch({.memory_bytes = 80 * kMebibyte}), 16U) << "never fewer";
  // 1,024 tokens of each sequence take 3 MiB, and the weights take 5.3 MiB.
  EXPECT_EQ(batch({.memory_bytes = 256 * kMebibyte}), 41U);
  EXPECT_EQ(batch({.memory_bytes = 8192 * kMebibyte}), 256U);
  EXPECT_EQ(batch({}), 256U);
  const UsualBatch usual = usual_batch({}, **file, *graph);
  EXPECT_EQ(usual.most, 256U);
  EXPECT_EQ(usual.least, 16U);
  EXPECT_EQ(batch({.memory_bytes = usual.memory_bytes}), 256U);
  EXPECT_EQ(batch({.memory_bytes = usual.memory_bytes - 1}), 255U);
  EXPECT_EQ(batch({.cpu = true}, 3), 3U);
  EXPECT_EQ(batch({.memory_bytes = 80 * kMebibyte}, 300), 300U) << "as it was asked for";
  // A sequence carries a little more than 40 MiB from position to position; all sequences carry 4
  // GiB at most.
  const model::DeltaHeads heads{
      .keys = 16, .values = 16, .size = 128, .taps = 4, .value_size = 128};
  graph->states.resize(40, model::StateStore{heads.state_floats()});
  EXPECT_LE(batch({}), 102U);
  EXPECT_GE(batch({}), 90U);
  // A GPU of 140 GiB that computes nothing else has room for two saved states of each sequence.
  DeviceSize large{.memory_bytes = std::uint64_t{140} << 30};
  EXPECT_EQ(with_sizes({}, **file, *graph, large).state_cache_mb, 0U);
  large.alone = true;
  const config::EngineSettings alone = with_sizes({}, **file, *graph, large);
  EXPECT_EQ(state_slots(*graph, alone), 3 * alone.max_batch + most_drafts(*graph, alone));
}

TEST_F(TransformerTest, SaysWhenAContextIsTooLong) {
  auto file = model::GgufFile::open(model_file("builtin").string());
  ASSERT_TRUE(file.ok());
  auto graph = model::read_model(**file);
  ASSERT_TRUE(graph.ok());
  TransformerOptions options;
  options.context = 2048;
  auto made = make_transformer(device(), **file, *graph, options);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message(), ::testing::HasSubstr("1024"));
  options.context = 1024;
  options.engine.kv_cache_mb = 1;
  made = make_transformer(device(), **file, *graph, options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(made.error().message(), ::testing::HasSubstr("engine.kv_cache_mb"));
}

}  // namespace
}  // namespace bulkhead::forward
