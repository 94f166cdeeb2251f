// The numerics contract from end to end: a sequence has the same bits however its prompt is cut,
// whichever other sequences are in its steps, with every variant of a kernel, and with every
// optimisation on or off.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fixture_models.hpp"
#include "transformer_harness.hpp"

namespace bulkhead::forward {
namespace {

using SameBits = TransformerTest;

// Models of three kinds: columns see all positions before their own; in some layers they see only a
// window, and scores have a cap; or layers carry a state.
struct Tried {
  Kind kind;
  std::string model;
};
// On a CPU, the kernels of GPUs compute only some models: a dense one and one with windows in one test; pages of bytes
// and a model with states in the other (Family has models for pages of halves). Of models that differ in the type of
// their weights, it is the one with the cheaper product.
enum class Other { kWindows, kStates };
std::vector<Tried> tried(bool on_cpu, Other with_lanes) {
  std::vector<Tried> list;
  for (const Kind& kind : kKinds) {
    const bool both = !on_cpu || !kind.lanes, halves = kind.kv == config::KvType::kF16;
    if (both || halves == (with_lanes == Other::kWindows)) {
      list.push_back(
          {kind, or_builtin(both ? "tiny-qwen3-Q4_K_M" : halves ? "tiny-qwen3-IQ4_NL" : kCheapest)});
    }
    if (!halves) continue;
    if (both || with_lanes == Other::kWindows)
      list.push_back({kind, or_builtin("tiny-gemma2-Q5_K_M")});
    if (both || with_lanes == Other::kStates)
      list.push_back({kind, or_builtin("tiny-qwen35-Q4_K_M")});
  }
  return list;
}

// Chunks for each way in which attention shares its work: one workgroup computes a few columns (7), or the columns
// are spread (33); and single columns at the first two and the last two positions of pages (the others are decoded
// alone). A whole prompt is the third way.
const std::vector<std::vector<std::uint32_t>> kCuts{{33, 7}, {1, 1, 28, 1, 1}};

void expect_same_bits_however_it_is_cut(Executor& executor, bool lanes,
                                        const std::vector<TokenId>& prompt,
                                        const std::vector<Row>& whole) {
  for (const auto& chunks : kCuts) {
    if (lanes && chunks.front() == 1) continue;
    expect_same_bits(generate(executor, prompt, whole.size(), chunks, Output::kLogits), whole,
                     "chunks of " + ::testing::PrintToString(chunks));
  }
}

// A sequence is computed alone, in chunks of several sizes, and beside another one. The columns that choose an
// expert differ from chunk to chunk and from step to step.
class Family : public SameBits, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(SameBits, Family, ::testing::ValuesIn(test::kFamilies));
TEST_P(Family, NeitherChunksNorCompanyChangeABit) {
  const std::string name = GetParam();
  if (!std::filesystem::exists(model_file(name))) GTEST_SKIP() << "no " << model_file(name);
  for (const bool lanes : {false, true}) {
    // On a CPU, the GPUs' kernels take 40 ms for a column, and each shape of a step is compiled. So there only
    // models with experts and latents are computed.
    const bool few = lanes && on_cpu();
    if (few && name != "tiny-qwen3moe-Q8_0" && name != "tiny-deepseek2-yarn-Q4_K_M") continue;
    Options options;
    options.lanes = lanes;
    options.chunk = few ? 60 : 96;
    const Loaded model = load(name, options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    // Longer than the windows of 64 positions.
    std::vector<std::vector<TokenId>> prompts{some_prompt(few ? 40 : 90),
                                              some_prompt(few ? 20 : 40)};
    std::vector<std::vector<Row>> alone, together(2);
    for (const auto& prompt : prompts)
      alone.push_back(generate(executor, prompt, 4, options.chunk, Output::kLogits));
    expect_same_bits_however_it_is_cut(executor, lanes, prompts[0], alone[0]);
    expect_same_bits(generate_with_drafts(executor, prompts[0], alone[0]), alone[0], "drafts");
    const std::vector<std::vector<PageIndex>> pages{pages_for(executor, 100, 0),
                                                    pages_for(executor, 100, 1)};
    for (std::uint32_t s = 0; s < 2; ++s)
      together[s] = step(executor, columns_of(prompts[s], s, Output::kLogits), pages);
    for (int round = 0; round < 3; ++round)
      ASSERT_NO_FATAL_FAILURE(decode_side_by_side(executor, prompts, pages, together));
    for (std::uint32_t s = 0; s < 2; ++s)
      expect_same_bits(together[s], alone[s], "sequence " + std::to_string(s));
  }
}

TEST_F(SameBits, ChunksDoNotChangeABit) {
  for (const auto& [kind, name] : tried(on_cpu(), Other::kWindows)) {
    const bool few = kind.lanes && on_cpu();
    Options options;
    options.lanes = kind.lanes;
    options.kv = kind.kv;
    options.chunk = few ? 70 : 256;
    const Loaded model = load(name, options);
    ASSERT_NE(model.executor, nullptr);
    const auto prompt = some_prompt(few ? 70 : 100);  // of several pages and splits
    const auto whole = generate(*model.executor, prompt, 3, options.chunk, Output::kLogits);
    expect_same_bits_however_it_is_cut(*model.executor, kind.lanes, prompt, whole);
  }
}

TEST_F(SameBits, CompanyDoesNotChangeABit) {
  for (const auto& [kind, name] : tried(on_cpu(), Other::kStates)) {
    Options options;
    options.lanes = kind.lanes;
    options.kv = kind.kv;
    const std::size_t longest = kind.lanes && on_cpu() ? 40 : 64;
    options.chunk = static_cast<std::uint32_t>(longest + 2);
    const Loaded model = load(name, options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    std::vector<std::vector<Row>> alone;
    std::vector<std::vector<TokenId>> prompts;
    for (const std::size_t length : {std::size_t{5}, std::size_t{12}, longest}) {
      prompts.push_back(some_prompt(length));
      alone.push_back(generate(executor, prompts.back(), 4, 64, Output::kLogits));
    }
    // Computes the three together: their prompts in one step as far as they fit, then their tokens
    // side by side.
    std::vector<std::vector<PageIndex>> pages;
    for (std::uint32_t s = 0; s < 3; ++s)
      pages.push_back(pages_for(executor, 80, s));
    std::vector<std::vector<Row>> together(3);
    std::vector<Column> first;
    for (std::uint32_t s = 0; s < 2; ++s) {
      const auto columns = columns_of(prompts[s], s, Output::kLogits);
      first.insert(first.end(), columns.begin(), columns.end());
    }
    auto rows = step(executor, first, pages);
    ASSERT_EQ(rows.size(), 2U);
    together[0].push_back(rows[0]);
    together[1].push_back(rows[1]);
    std::vector<Column> second = columns_of(prompts[2], 2, Output::kLogits);
    for (std::uint32_t s = 2; s-- > 0;) {
      second.insert(second.begin(),
                    {together[s].back().best, static_cast<std::uint32_t>(prompts[s].size()), s,
                     Output::kLogits});
    }
    rows = step(executor, second, pages);
    ASSERT_EQ(rows.size(), 3U);
    for (std::uint32_t s = 0; s < 3; ++s)
      together[s].push_back(rows[s]);
    for (int round = 0; round < 2; ++round)
      ASSERT_NO_FATAL_FAILURE(decode_side_by_side(executor, prompts, pages, together));
    together[2].resize(3);
    alone[2].resize(3);
    for (std::uint32_t s = 0; s < 3; ++s)
      expect_same_bits(together[s], alone[s], "sequence " + std::to_string(s));
  }
}

// There are more sequences than any tile has columns, and each has another length.
void expect_company_of_44_changes_no_bit(Executor& executor) {
  const std::uint32_t count = 44;
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
    const auto rows = step(executor, columns_of(prompts[s], s, Output::kLogits), pages);
    ASSERT_EQ(rows.size(), 1U);
    together[s] = rows;
  }
  for (std::size_t n = 1; n < tokens; ++n)
    ASSERT_NO_FATAL_FAILURE(decode_side_by_side(executor, prompts, pages, together));
  for (std::uint32_t s = 0; s < count; ++s)
    expect_same_bits(together[s], alone[s], "sequence " + std::to_string(s));
}

TEST_F(SameBits, FortyFourSequencesKeepTheirBits) {
  Options options;
  options.max_batch = 44;
  const Loaded model = load(any_model(), options);
  ASSERT_NE(model.executor, nullptr);
  expect_company_of_44_changes_no_bit(*model.executor);
}

TEST_P(Family, FortyFourSequencesKeepTheirBits) {
  const std::string name = GetParam();
  if (!std::filesystem::exists(model_file(name))) GTEST_SKIP() << "no " << model_file(name);
  if (on_cpu())
    GTEST_SKIP() << "on a CPU one model must do, of another test (BULKHEAD_TEST_DEVICE=auto)";
  Options options;
  options.max_batch = 44;
  const Loaded model = load(name, options);
  ASSERT_NE(model.executor, nullptr);
  expect_company_of_44_changes_no_bit(*model.executor);
}

TEST_F(SameBits, SwitchesDoNotChangeABit) {
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

// The variants are those among which the tuner chooses.
TEST_F(SameBits, VariantsOfProductsDoNotChangeABit) {
  const auto prompt = some_prompt(7);
  for (const bool lanes : {false, true}) {
    Options options;
    options.lanes = lanes;
    options.chunk = on_cpu() ? 2 : 3;  // four columns at most: each shape is compiled
    options.max_batch = 1;
    const Loaded usual = load(or_builtin("tiny-qwen2-Q4_0"), options);
    ASSERT_NE(usual.executor, nullptr);
    const auto want = generate(*usual.executor, prompt, 2, options.chunk, Output::kLogits);
    for (const std::size_t variant : {1U, 2U}) {
      options.product_variant = variant;
      const Loaded model = load(or_builtin("tiny-qwen2-Q4_0"), options);
      ASSERT_NE(model.executor, nullptr);
      expect_same_bits(generate(*model.executor, prompt, 2, options.chunk, Output::kLogits), want,
                       "variant " + std::to_string(variant));
    }
  }
}

TEST_F(SameBits, TuningAtTheStartLeavesNoTraceInTheTokens) {
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

// A step computes as a prompt what other steps generated, as after a restart.
TEST_F(SameBits, ReplayedTokensAreTheSameBits) {
  for (const auto [lanes, kv] : kKinds) {
    Options options;
    options.lanes = lanes;
    options.kv = kv;
    if (lanes && on_cpu()) options.chunk = kNarrow;
    const Loaded model = load(or_builtin("tiny-qwen2-Q4_0"), options);
    ASSERT_NE(model.executor, nullptr);
    auto prompt = some_prompt(37);
    auto made = generate(*model.executor, prompt, 12, options.chunk, Output::kLogits);
    ASSERT_EQ(made.size(), 12U);
    for (std::size_t i = 0; i < 7; ++i)
      prompt.push_back(made[i].best);
    made.erase(made.begin(), made.begin() + 7);
    expect_same_bits(generate(*model.executor, prompt, 5, options.chunk, Output::kLogits), made,
                     std::string("replayed, ") + config::to_string(kv));
  }
}

TEST_F(SameBits, ChainedKernelsDoNotChangeABit) {
  using enum config::KvType;
  const std::pair<std::string, config::KvType> models[] = {{"builtin", kF16},
                                                           {"tiny-qwen2-Q4_K_M", kF16},
                                                           {"tiny-qwen2-Q4_K_M", kQ8_0},
                                                           {"tiny-qwen3-Q4_K_M", kF16},
                                                           {"tiny-llama-F16", kF16},
                                                           {"tiny-llama-F16", kQ8_0},
                                                           {"tiny-qwen3-BF16", kF16},
                                                           {"tiny-qwen35-Q4_K_M", kF16},
                                                           {"tiny-qwen35moe-Q8_0", kF16},
                                                           {"tiny-gpt-oss-MXFP4", kF16},
                                                           {"tiny-gpt-oss-MXFP4", kQ8_0},
                                                           {"tiny-gemma2-Q5_K_M", kF16}};
  for (const auto& [file, kv] : models) {
    const std::string name = or_builtin(file);
    std::vector<std::vector<Row>> made;
    for (const config::ChainedKernels setting :
         {config::ChainedKernels::kOff, config::ChainedKernels::kOn}) {
      Options options;
      options.max_batch = 16;
      options.kv = kv;
      options.gpu = [&](config::GpuOptimizations& gpu) { gpu.chained_kernels = setting; };
      const Loaded model = load(name, options);
      ASSERT_NE(model.executor, nullptr);
      if (!has_units(*model.executor))
        GTEST_SKIP() << "only products by matrix units are chained (BULKHEAD_TEST_DEVICE=auto)";
      auto prompt = some_prompt(9);
      for (TokenId& token : prompt)
        token %= model.executor->limits().vocabulary;
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
    expect_same_bits(made[1], made[0],
                     name + ": chained kernels, pages of " + config::to_string(kv));
  }
}

// For long contexts, attention shares its work in another way for each width of a step. The test
// computes positions around the borders where the ways change, with every kernel that the device
// has.
TEST_F(SameBits, LongContextsKeepTheirBitsHoweverTheyAreComputed) {
  struct Way {
    const char* name;
    config::ChainedKernels chained;
    config::KvType kv = config::KvType::kF16;
  };
  const Way ways[] = {
      {"dispatched", config::ChainedKernels::kOff},
      {"chained", config::ChainedKernels::kOn},
      {"pages of bytes", config::ChainedKernels::kOff, config::KvType::kQ8_0},
      {"pages of bytes, chained", config::ChainedKernels::kOn, config::KvType::kQ8_0},
  };
  for (const std::string& name :
       std::set{or_builtin("tiny-qwen2-Q4_K_M"), or_builtin("tiny-qwen3-Q4_K_M"),
                or_builtin("tiny-gpt-oss-MXFP4"), or_builtin("tiny-gemma2-Q5_K_M")}) {
    if (on_cpu() && name != or_builtin("tiny-qwen2-Q4_K_M")) continue;
    std::map<std::pair<config::KvType, std::uint32_t>, std::vector<Row>> all_wanted;
    for (const Way& way : ways) {
      if (on_cpu() && &way != ways) break;  // a GPU's
      Options options;
      options.lanes = on_cpu();
      options.chunk = on_cpu() ? 64 : 256;
      // Among four sequences, each has the window pages of a whole chunk.
      const bool slides = name == "tiny-gpt-oss-MXFP4" || name == "tiny-gemma2-Q5_K_M";
      options.max_batch = slides ? 4 : 20;
      options.kv = way.kv;
      options.gpu = [&](config::GpuOptimizations& gpu) { gpu.chained_kernels = way.chained; };
      const Loaded model = load(name, options);
      ASSERT_NE(model.executor, nullptr);
      Executor& executor = *model.executor;
      const std::uint32_t context = executor.limits().context;
      for (const std::uint32_t length : {1060U, 2040U}) {
        if (length + 8 > context || (on_cpu() && length > 1100)) continue;
        std::vector<Row>& wanted = all_wanted[{way.kv, length}];
        const auto prompt = some_prompt(length);
        const std::uint32_t tail = on_cpu() ? 44 : 100;
        // The pages of the sequence, the last one first; then those of the other sequences.
        std::vector<std::vector<PageIndex>> pages(1);
        const std::uint32_t count = (length + 8 + 31) / 32;
        for (std::uint32_t i = 0; i < count; ++i)
          pages[0].push_back(count - 1 - i);
        // On a CPU, where columns are slow, the pages before those of the tail are the first eight pages,
        // again and again.
        const std::uint32_t before = (length - tail) / 32, made = on_cpu() ? 8 : before;
        for (std::uint32_t i = made; i < before; ++i)
          pages[0][i] = pages[0][i % made];
        const auto feed = [&](std::uint32_t first, std::uint32_t last, std::uint32_t chunk) {
          std::vector<Row> rows;
          for (std::uint32_t at = first; at < last; at += chunk) {
            std::vector<Column> columns;
            for (std::uint32_t i = at; i < std::min(at + chunk, last); ++i)
              columns.push_back({prompt[i], i, 0, i + 1 == last ? Output::kLogits : Output::kNone});
            rows = step(executor, columns, {pages[0]});
          }
          return rows;
        };
        feed(0, made * 32, options.chunk);
        feed(before * 32, length - tail, options.chunk);
        for (const std::uint32_t chunk : {256U, 40U, 16U, 3U, 1U}) {
          if (on_cpu() && chunk != 40 && chunk != 3) continue;  // each shape is compiled there
          const auto rows = feed(length - tail, length, chunk);
          ASSERT_EQ(rows.size(), 1U);
          if (wanted.empty()) wanted = rows;
          expect_same_bits(rows, wanted,
                           name + " " + way.name + ", the end by " + std::to_string(chunk));
        }
        // Computes the next token alone, and beside others.
        const Column next{prompt[1], length, 0, Output::kLogits};
        const auto alone = step(executor, {next}, pages);
        for (const std::uint32_t others : {1U, 9U, 19U}) {
          if ((on_cpu() && others == 1) || others >= options.max_batch) continue;
          std::vector<Column> columns{next};
          auto all_pages = pages;
          for (std::uint32_t s = 0; s < others; ++s) {
            all_pages.push_back({count + s});
            columns.push_back({prompt[s], 0, s + 1, Output::kNone});
          }
          expect_same_bits(step(executor, columns, all_pages), alone,
                           name + " " + way.name + ", beside " + std::to_string(others));
        }
      }
      EXPECT_EQ(counter_of(executor, "steps_computed_again"), 0);
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
