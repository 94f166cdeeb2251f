// Models of random shapes (random_model.hpp): each computes what its graph says in double, and the same bits in every
// way of running it, or is refused with a reason.
//
// BULKHEAD_RANDOM_MODELS="FIRST COUNT" tries other seeds, BULKHEAD_RANDOM_ARCHITECTURE one architecture alone, and
// BULKHEAD_RANDOM_LANES=1 the kernels of GPUs, too.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "graph_in_double.hpp"
#include "random_model.hpp"
#include "tests/unit/model/gguf_builder.hpp"
#include "transformer_harness.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::forward {
namespace {

struct Seeds {
  std::uint64_t first = 1, count = 3;
};
Seeds seeds() {
  Seeds made;
  const char* const asked = std::getenv("BULKHEAD_RANDOM_MODELS");
  unsigned long first = 0, count = 0;
  if (asked != nullptr && std::sscanf(asked, "%lu %lu", &first, &count) == 2) made = {first, count};
  return made;
}

std::string wanted_architecture() {
  const char* const asked = std::getenv("BULKHEAD_RANDOM_ARCHITECTURE");
  return asked != nullptr ? asked : "";
}

// Returns whether the kernels of GPUs compute the models, too. A CPU compiles each of these kernels
// for a minute.
bool with_lanes() {
  return std::getenv("BULKHEAD_RANDOM_LANES") != nullptr;
}

class RandomModels : public TransformerTest {
 protected:
  // Runs each model that is not refused.
  template <typename Try>
  void for_each_model(const Try& attempt) {
    const Seeds all = seeds();
    std::uint64_t refused = 0;
    for (std::uint64_t seed = all.first; seed < all.first + all.count; ++seed) {
      model_ = random_model(seed, wanted_architecture());
      seed_ = seed;
      const std::string title =
          "seed " + std::to_string(seed) + ", " + model_.architecture + ": " + model_.description;
      SCOPED_TRACE(title);
      std::printf("%s\n", title.c_str());
      std::fflush(stdout);
      if (model_.bytes.empty()) {
        EXPECT_FALSE(model_.refusal.empty());
        std::printf("  refused: %s\n", model_.refusal.c_str());
        ++refused;
        continue;
      }
      const auto file = model::testing::open_bytes(model_.bytes);
      ASSERT_TRUE(file.ok()) << file.error().message();
      const auto graph = model::read_model(**file);
      ASSERT_TRUE(graph.ok()) << graph.error().message();
      attempt(**file, *graph);
    }
    std::printf("%lu of %lu refused\n", refused, all.count);
  }

  Loaded load_random(const Options& options) {
    const std::filesystem::path name =
        std::filesystem::temp_directory_path() / ("bulkhead-random-" + std::to_string(::getpid()));
    const std::string path = name.string() + ".gguf";
    std::ofstream(path, std::ios::binary) << model_.bytes;
    Loaded loaded = load(name.string(), options);
    std::filesystem::remove(path);
    return loaded;
  }

  std::vector<TokenId> text(std::uint64_t which, std::size_t length) const {
    return random_text(model_, seed_ * 100 + which, length);
  }

  RandomModel model_;
  std::uint64_t seed_ = 0;
};

double worst_difference(const std::vector<float>& got, const GraphInDouble::Vector& want) {
  double worst = got.size() == want.size() ? 0 : 1e9, squares = 0;
  for (const double each : want)
    squares += each * each;
  const double size = std::max(std::sqrt(squares / static_cast<double>(want.size())), 1e-3);
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - want[i]) / size;
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

// The worst difference from the graph in double of any logit (or entry of an embedding) that is read.
double worst_of_model(Executor& executor, const std::vector<TokenId>& tokens, std::uint32_t chunk,
                      const GraphInDouble& reference) {
  const std::vector<std::vector<PageIndex>> pages{
      pages_for(executor, static_cast<std::uint32_t>(tokens.size()))};
  const bool encoder = executor.limits().both_ways;
  const std::size_t each = encoder ? tokens.size() : chunk;
  double worst = 0;
  for (std::size_t at = 0; at < tokens.size(); at += each) {
    auto columns = columns_of(tokens, 0, Output::kLogits, at, each);
    columns.back().output = encoder ? Output::kHidden : Output::kLogits;
    const std::uint32_t position = columns.back().position;
    const std::vector<Row> rows = step(executor, columns, pages);
    if (rows.size() != 1) return std::numeric_limits<double>::infinity();
    const double difference = encoder
                                  ? worst_difference(rows[0].hidden, reference.hidden(position))
                                  : worst_difference(rows[0].logits, reference.logits(position));
    worst = std::max(worst, difference);
  }
  return worst;
}

// Returns whether some quantised rows are packed transposed, which rounds them to halves.
bool rounds_weights(const model::GgufFile& file, const model::ModelGraph& graph) {
  const auto rounds = [&](const model::Operation& operation) {
    const auto* const product = std::get_if<model::SliceProduct>(&operation);
    if (product == nullptr || !product->transposed) return false;
    const std::string& name = graph.tensors[product->rows.tensor].name;
    return !model::traits(file.find_tensor(name)->type)->is_float();
  };
  return std::ranges::any_of(graph.layers, [&](const model::Layer& layer) {
    return std::ranges::any_of(layer.operations, rounds);
  });
}

// The KV pages hold floats, so that only float32's rounding remains as a difference.
TEST_F(RandomModels, ComputeWhatTheirGraphsSayInDouble) {
  constexpr double kLeastGap = 1e-3;
  for_each_model([&](const model::GgufFile& file, const model::ModelGraph& graph) {
    const double most = rounds_weights(file, graph) ? 1e-2 : 1e-4;
    GraphInDouble reference(file, graph);
    // A choice of experts must not be a matter of rounding.
    std::vector<TokenId> tokens;
    double gap = 0;
    std::size_t length = std::min<std::size_t>(model_.context - 1, 70 + seed_ % 9);
    for (std::size_t which = 0; gap < kLeastGap && length > 0; ++which) {
      tokens = text(which, length);
      reference.read(tokens);
      gap = reference.least_gap();
      if (which % 3 == 2) length /= 2;
    }
    if (gap < kLeastGap) return;
    for (const bool lanes : {false, true}) {
      if (lanes && !with_lanes()) continue;
      Options options;
      options.lanes = lanes;
      options.kv = config::KvType::kF32;
      options.chunk = lanes ? kNarrow : 32;
      const Loaded model = load_random(options);
      ASSERT_NE(model.executor, nullptr);
      const double worst = worst_of_model(*model.executor, tokens, options.chunk, reference);
      std::printf("  %zu positions, %swithin %.6f\n", tokens.size(), lanes ? "lanes, " : "", worst);
      EXPECT_LT(worst, has_units(*model.executor) ? kMostOfHalves : most)
          << (lanes ? "lanes" : "the device's own mapping");
    }
  });
}

// Three sequences of the model, whose pages are apart.
struct Company {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::vector<PageIndex>> pages;
};

void expect_same_embeddings(Executor& executor, const Company& texts) {
  std::vector<Column> all;
  std::vector<std::vector<Row>> alone;
  for (std::uint32_t s = 0; s < texts.prompts.size(); ++s) {
    const auto columns = columns_of(texts.prompts[s], s, Output::kHidden);
    all.insert(all.end(), columns.begin(), columns.end());
    alone.push_back(step(executor, columns, texts.pages));
  }
  if (all.size() > executor.limits().max_columns) return;
  const auto together = step(executor, all, texts.pages);
  ASSERT_EQ(together.size(), alone.size());
  for (std::size_t s = 0; s < alone.size(); ++s)
    expect_same_bits({together[s]}, alone[s], "text " + std::to_string(s));
}

void expect_same_bits_in_chunks(Executor& executor, const std::vector<TokenId>& prompt,
                                std::uint32_t widest, const std::vector<Row>& whole) {
  const std::vector<std::vector<std::uint32_t>> cuts{{33, 7}, {1, 2, 5, 1, 31}, {11}};
  for (std::vector<std::uint32_t> sizes : cuts) {
    for (std::uint32_t& size : sizes)
      size = std::min(size, widest);
    expect_same_bits(generate(executor, prompt, whole.size(), sizes, Output::kLogits), whole,
                     "chunks of " + ::testing::PrintToString(sizes));
  }
}

void expect_same_bits_together(Executor& executor, const Company& streams, std::uint32_t chunk,
                               const std::vector<std::vector<Row>>& alone) {
  std::vector<std::vector<Row>> together(alone.size());
  for (std::uint32_t s = 0; s < alone.size(); ++s) {
    for (std::size_t at = 0; at < streams.prompts[s].size(); at += chunk)
      together[s] = step(executor, columns_of(streams.prompts[s], s, Output::kLogits, at, chunk),
                         streams.pages);
  }
  while (together[0].size() < alone[0].size())
    ASSERT_NO_FATAL_FAILURE(
        decode_side_by_side(executor, streams.prompts, streams.pages, together));
  for (std::size_t s = 0; s < alone.size(); ++s)
    expect_same_bits(together[s], alone[s], "sequence " + std::to_string(s));
}

TEST_F(RandomModels, KeepTheirBitsInEveryWay) {
  constexpr std::size_t kTokens = 4;
  for_each_model([&](const model::GgufFile&, const model::ModelGraph& graph) {
    Options options;
    options.lanes = with_lanes();
    options.chunk = options.lanes ? 12 : 80;
    options.max_batch = 16;  // with it there are pages for three whole contexts
    options.kv = seed_ % 3 == 0 ? config::KvType::kQ8_0 : config::KvType::kF16;
    const Loaded model = load_random(options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    const std::size_t longest =
        std::min<std::size_t>(executor.limits().context, options.lanes ? 40 : 80) - kTokens - 7;
    Company company;
    company.prompts = {text(1, longest), text(2, 3), text(3, 20)};
    const std::uint32_t pages = 3;  // of each
    ASSERT_LE(3 * pages, executor.limits().pages_at_first());
    for (std::uint32_t s = 0; s < 3; ++s)
      company.pages.push_back({s, 3 + s, 6 + s});
    if (executor.limits().both_ways) return expect_same_embeddings(executor, company);
    std::vector<std::vector<Row>> alone;
    for (const auto& prompt : company.prompts)
      alone.push_back(generate(executor, prompt, kTokens, options.chunk, Output::kLogits));
    expect_same_bits_in_chunks(executor, company.prompts[0], options.chunk, alone[0]);
    if (company.prompts[0].size() <= options.chunk)
      expect_same_bits(generate_with_drafts(executor, company.prompts[0], alone[0]), alone[0],
                       "drafts");
    expect_same_bits_together(executor, company, options.chunk, alone);
    if (options.lanes || graph.layers.size() < 2 || !graph.lookups.empty()) return;
    options.stages = 2;
    const Loaded split = load_random(options);
    ASSERT_NE(split.executor, nullptr);
    expect_same_bits(generate(*split.executor, company.prompts[0], kTokens, 20, Output::kLogits),
                     alone[0], "a split");
  });
}

// Each file is either refused or can be planned for every kind of device.
TEST(WildNumbers, AreRefusedOrPlanned) {
  const Seeds all = seeds();
  std::uint64_t planned = 0;
  for (std::uint64_t seed = all.first; seed < all.first + 100 * all.count; ++seed) {
    const RandomModel wild = model_with_a_wild_number(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + wild.architecture + ": " +
                 wild.description);
    if (wild.bytes.empty()) continue;
    const auto file = model::testing::open_bytes(wild.bytes);
    ASSERT_TRUE(file.ok()) << file.error().message();
    const auto graph = model::read_model(**file);
    if (!graph.ok()) {
      EXPECT_NE(graph.error().message().find("test.gguf"), std::string::npos)
          << graph.error().message();
      continue;
    }
    for (const bool units : {false, true}) {
      config::EngineSettings engine;
      engine.kv_type = seed % 2 == 0 ? config::KvType::kF16 : config::KvType::kQ8_0;
      const auto need = memory_need(**file, *graph, engine, units);
      ASSERT_TRUE(need.ok()) << need.error().message();
    }
    ++planned;
  }
  std::printf("%lu of %lu planned\n", planned, 100 * all.count);
}

}  // namespace
}  // namespace bulkhead::forward
