// The places where models can be cut, and the layers that each device gets.
#include "worker/forward/layer_split.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/forward/split_exported.hpp"

namespace bulkhead::forward {
namespace {

using model::kStream;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> none(std::size_t layers) {
  return std::vector<std::string>(layers);
}

TEST(ShareOutLayers, GivesEachDeviceWhatItHasRoomFor) {
  const PartSizes even{std::vector<std::uint64_t>(8, 10), 0, 0};
  const auto halves = share_out_layers(even, none(8), std::vector<std::uint64_t>{100, 100});
  ASSERT_TRUE(halves.ok());
  EXPECT_THAT(*halves, ElementsAre(StageLayers{0, 4}, StageLayers{4, 8}));
  const auto thirds = share_out_layers(even, none(8), std::vector<std::uint64_t>{300, 100});
  ASSERT_TRUE(thirds.ok());
  EXPECT_THAT(*thirds, ElementsAre(StageLayers{0, 6}, StageLayers{6, 8}));
  const PartSizes with_head{std::vector<std::uint64_t>(8, 10), 0, 40};
  const auto head = share_out_layers(with_head, none(8), std::vector<std::uint64_t>{100, 100});
  ASSERT_TRUE(head.ok());
  EXPECT_THAT(*head, ElementsAre(StageLayers{0, 6}, StageLayers{6, 8}));
  EXPECT_TRUE(fits(*head, with_head, std::vector<std::uint64_t>{60, 60}));
  EXPECT_FALSE(fits(*head, with_head, std::vector<std::uint64_t>{59, 60}));
}

TEST(ShareOutLayers, CutsOnlyWhereItCan) {
  const PartSizes even{std::vector<std::uint64_t>(4, 10), 0, 0};
  const std::vector<std::uint64_t> free{100, 100};
  const auto moved =
      share_out_layers(even, std::vector<std::string>{"first", "", "shared", "shared"}, free);
  ASSERT_TRUE(moved.ok());
  EXPECT_THAT(*moved, ElementsAre(StageLayers{0, 1}, StageLayers{1, 4}));
  const auto refused =
      share_out_layers(even, std::vector<std::string>{"first", "shared", "shared", "shared"}, free);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("layer 1: shared"));
  EXPECT_THAT(refused.error().message(), HasSubstr("leave out models[].split"));
  const PartSizes short_model{{10}, 0, 0};
  EXPECT_FALSE(share_out_layers(short_model, none(1), free).ok());
}

// Two layers; the second one reads what the test gives it.
model::ModelGraph two_layers(model::ActivationIndex read, model::KvIndex kv) {
  model::ModelGraph graph;
  graph.activations = {{"stream"}, {"normed"}, {"token's inputs"}};
  graph.vectors.resize(3);
  for (model::VectorRow& vector : graph.vectors)
    vector.parts = {{0}};
  graph.kv.resize(2);
  graph.output_gain = 2;
  const auto layer = [](model::ActivationIndex in, model::VectorIndex gain, model::KvIndex store) {
    model::Norm norm{.in = in, .out = 1, .gain = gain};
    model::Attend attend;
    attend.kv = store;
    attend.out = 1;
    return model::Layer{{norm, attend}};
  };
  graph.layers = {layer(kStream, 0, 0), layer(read, 1, kv)};
  return graph;
}

TEST(Obstacles, AreSharedKeysAndInputsOfLaterLayers) {
  EXPECT_THAT(obstacles(two_layers(kStream, 1)), ElementsAre(HasSubstr("first"), ""));
  EXPECT_THAT(obstacles(two_layers(kStream, 0))[1], HasSubstr("share keys and values"));
  EXPECT_THAT(obstacles(two_layers(2, 1))[1], HasSubstr("token's inputs"));
}

TEST(StageGraph, HasWhatItsLayersNeed) {
  const model::ModelGraph graph = two_layers(kStream, 1);
  const model::ModelGraph first = stage_graph(graph, {0, 1}, false);
  EXPECT_EQ(first.start, model::StreamStart::kEmbedding);
  EXPECT_FALSE(first.makes_logits);
  EXPECT_FALSE(first.vectors[0].parts.empty());
  EXPECT_TRUE(first.vectors[1].parts.empty());
  EXPECT_TRUE(first.vectors[2].parts.empty()) << "the output's norm";
  const model::ModelGraph last = stage_graph(graph, {1, 2}, true);
  EXPECT_EQ(last.start, model::StreamStart::kBroughtAndPrepared);
  EXPECT_TRUE(last.makes_logits);
  EXPECT_EQ(last.kv.size(), 1U);
  EXPECT_EQ(std::get<model::Attend>(last.layers[0].operations[1]).kv, 0U);
  EXPECT_FALSE(last.vectors[2].parts.empty());
}

ExportedStage kept_stage(StageLayers layers, std::uint64_t size) {
  ExportedStage stage{layers, {}};
  stage.memory.layout = {"device\nnumerics\n", {64, 9}, 1, {size, size + 1}};
  stage.memory.checksums.resize(1);
  stage.memory.checksums[0][0] = static_cast<std::uint32_t>(size);
  stage.memory.blocks.resize(2);
  return stage;
}

TEST(KeptStages, AreTakenApartAsTheyWere) {
  std::vector<ExportedStage> stages;
  stages.push_back(kept_stage({0, 3}, 10));
  stages.push_back(kept_stage({3, 8}, 20));
  ExportedMemory joined = join_exported(std::move(stages));
  EXPECT_EQ(joined.layout.weight_blocks, 2U);
  EXPECT_THAT(joined.layout.block_bytes, ElementsAre(10, 20, 11, 21));
  EXPECT_EQ(joined.blocks.size(), 4U);
  const auto parted = part_exported(joined, 2);
  ASSERT_TRUE(parted.ok()) << parted.error().message();
  for (std::size_t i = 0; i < 2; ++i) {
    const ExportedStage& stage = (*parted)[i];
    const ExportedStage was = i == 0 ? kept_stage({0, 3}, 10) : kept_stage({3, 8}, 20);
    EXPECT_EQ(stage.layers, was.layers);
    EXPECT_EQ(stage.memory.layout, was.memory.layout);
    EXPECT_EQ(stage.memory.checksums, was.memory.checksums);
    EXPECT_EQ(stage.memory.blocks.size(), 2U);
  }
}

// The layers of the first stage have no windows, so it has no piece of slab 3, which has window pages.
TEST(KeptStages, GetTheSizesOfAGrowingCacheAndTheirPiecesOfItsSlabs) {
  CacheSize cache;
  cache.context = 64;
  cache.pages = 39;
  cache.window_pages = 29;
  cache.first_pages = cache.window_first_pages = 9;
  cache.slab_pages = cache.window_slab_pages = 10;
  cache.eager_pages = 25;
  cache.window_eager_pages = 15;
  ASSERT_TRUE(cache.slabs_fit());
  std::vector<ExportedStage> stages;
  stages.push_back(kept_stage({0, 3}, 10));
  stages.push_back(kept_stage({3, 8}, 20));
  stages[0].memory.layout.cache = cache.without_windows();
  stages[1].memory.layout.cache = cache;
  ExportedMemory joined = join_exported(std::move(stages));
  EXPECT_EQ(joined.layout.cache, cache);
  for (const std::uint32_t piece : {2U, 3U, 7U})
    joined.slabs.push_back({piece, piece * 100, {}});
  const auto parted = part_exported(joined, 2);
  ASSERT_TRUE(parted.ok()) << parted.error().message();
  EXPECT_EQ((*parted)[0].memory.layout.cache, cache.without_windows());
  EXPECT_EQ((*parted)[1].memory.layout.cache, cache);
  const auto slabs_of = [&](std::size_t stage) {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> slabs;
    for (const ExportedSlab& slab : (*parted)[stage].memory.slabs)
      slabs.emplace_back(slab.piece, slab.offset);
    return slabs;
  };
  using Slabs = std::vector<std::pair<std::uint32_t, std::uint64_t>>;
  EXPECT_EQ(slabs_of(0), (Slabs{{1, 200}}));
  EXPECT_EQ(slabs_of(1), (Slabs{{1, 300}, {3, 700}}));
}

TEST(KeptStages, OfAnotherNumberOfDevicesOrOfAWholeModelAreRefused) {
  std::vector<ExportedStage> stages;
  stages.push_back(kept_stage({0, 3}, 10));
  ExportedMemory joined = join_exported(std::move(stages));
  EXPECT_FALSE(part_exported(joined, 2).ok());
  ExportedMemory whole = std::move(kept_stage({0, 3}, 10).memory);
  EXPECT_FALSE(part_exported(whole, 1).ok());
  ExportedMemory torn;
  torn.layout.identity = "stage layers 0-3 windows 0 blocks 1+1 lines 2\none line\n";
  EXPECT_FALSE(part_exported(torn, 1).ok());
}

}  // namespace
}  // namespace bulkhead::forward
