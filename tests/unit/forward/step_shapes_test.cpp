// The shapes for which steps are recorded. A mixed load must record nothing new.
#include "worker/forward/step_shapes.hpp"

#include <random>

#include "failing_device.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/forward/step_attention.hpp"
#include "worker/forward/step_emitter.hpp"

namespace bulkhead::forward {
namespace {

double counter(const Executor& executor, const std::string& name) {
  for (const auto& each : executor.counters()) {
    if (each.name == name) return each.value;
  }
  ADD_FAILURE() << "no counter " << name;
  return 0;
}

TEST(StepShapes, AreNoMoreThanTheRingKeeps) {
  for (const std::uint32_t most : {8U, 7U, 12U}) {
    for (const std::uint32_t columns : {1U, 17U, 272U, 544U, 1056U, 4160U, 1U << 20}) {
      for (const std::uint32_t mixed : {columns, columns / 2 + 1, 20U, 272U}) {
        const std::vector<StepShape> shapes = step_shapes(columns, mixed, 16, most);
        EXPECT_LE(shapes.size(), most) << columns;
        EXPECT_EQ(shapes.back().columns, columns);
        EXPECT_EQ(shape_for(shapes, 1, 1).columns, 1U);
        for (std::size_t i = 1; i < shapes.size(); ++i)
          EXPECT_LT(shapes[i - 1].columns, shapes[i].columns);
      }
    }
  }
  const std::uint32_t kept = config::CommandBufferRingSettings().ring_size;
  const config::EngineSettings defaults;
  const std::uint32_t mixed = widest_mixed_step(defaults);
  EXPECT_EQ(step_shapes(widest_step({}, defaults, false), mixed, 16, kept),
            step_shapes(widest_step({}, defaults, false), mixed, 16, 100))
      << "the defaults leave none out";
  EXPECT_EQ(step_shapes(1056, 1056, 16, 1).size(), 7U) << "narrow ones are not left out";
}

// Wider ones would compute wrong numbers there.
TEST(StepShapes, StepsOnACpuHaveABound) {
  config::EngineSettings wide;
  wide.prefill_chunk = 20'000;
  EXPECT_EQ(widest_step({}, wide, false), 20'000U);
  EXPECT_EQ(widest_step({}, wide, true), kMostColumnsOnCpu);
  wide.prefill_chunk = 1'000;
  EXPECT_EQ(widest_step({}, wide, true), 1'000U);
}

// Each draft takes the memory of a sequence's states.
TEST(StepShapes, StatesBoundTheDraftsOfAStep) {
  const config::EngineSettings defaults;
  EXPECT_EQ(most_drafts({}, defaults), engine::kMostDrafts);
  const auto drafts_with = [](std::uint64_t mebibytes, config::Speculation speculation) {
    model::ModelGraph graph;
    graph.states.push_back({mebibytes << 18});
    config::EngineSettings engine;
    engine.max_batch = 16;
    engine.speculation = speculation;
    const std::uint32_t drafts = most_drafts(graph, engine);
    engine.speculation = config::Speculation::kOff;
    const std::uint32_t without = state_slots(graph, engine);
    engine.speculation = speculation;
    EXPECT_EQ(state_slots(graph, engine), without + drafts);
    return drafts;
  };
  EXPECT_EQ(drafts_with(1, config::Speculation::kNgram), engine::kMostDrafts);
  EXPECT_EQ(drafts_with(60, config::Speculation::kNgram), 8U);
  EXPECT_EQ(drafts_with(400, config::Speculation::kAlways), 4U);
  EXPECT_EQ(drafts_with(60, config::Speculation::kOff), 0U);
}

// A vocabulary of more than 65,535 x 16 tokens, on Mesa's device.
TEST(StepShapes, RowsThatADeviceCantDispatchAreRefusedWhileKernelsAreListed) {
  const std::unique_ptr<gpu::Device> device = open_device();
  if (device == nullptr) GTEST_SKIP() << "there is no device";
  std::vector<gpu::KernelSpec> wanted;
  StepContext context;
  context.device = device.get();
  context.graph.vocabulary = 2'000'000;
  context.wanted = &wanted;
  StepProgram program;
  DispatchedSteps steps(context, program);
  gpu::KernelSpec spec;
  spec.name = "logits";
  const std::uint32_t most = device->max_groups(0);
  EXPECT_TRUE(steps.dispatch(spec, {}, {most}).ok());
  const Status refused = steps.dispatch(spec, {}, {most + 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);
  for (const char* words : {"kernel logits", "2000000", "models[].device"})
    EXPECT_NE(refused.error().message().find(words), std::string::npos)
        << refused.error().message();
  EXPECT_EQ(wanted.size(), 1U);
}

TEST(StepShapes, AChunkBesideThoseThatGenerateHasItsOwn) {
  const std::vector<StepShape> shapes = step_shapes(2048, 272, 16, 16);
  EXPECT_EQ(shape_for(shapes, 256, 16).columns, 272U);
  EXPECT_EQ(shape_for(shapes, 273, 1).columns, 512U);
  EXPECT_EQ(shape_for(shapes, 513, 1).columns, 1024U);
  EXPECT_EQ(shape_for(shapes, 1025, 1).columns, 2048U);
  EXPECT_EQ(shape_for(shapes, 60, 16).columns, 64U);
}

// A step has the kernels of its own positions only. Here heads of 128 entries have two ranges in narrow steps, heads
// of 256 in all steps, and windows have none.
TEST(StepShapes, APositionsKernelsAreThoseOfItsRanges) {
  using enum Positions;
  StepContext context;
  context.context = 4096;
  context.mapping.units = true;
  context.mapping.units_attention = gpu::kernels::UnitsAttention::kWhereFaster;
  context.mapping.attention_together = true;
  context.graph.kv.resize(1);
  context.graph.activations.resize(1);
  const auto positions = [&](std::uint32_t columns, std::vector<std::uint32_t> at) {
    std::vector<Column> step(at.size());
    for (std::size_t i = 0; i < at.size(); ++i)
      step[i].position = at[i];
    return positions_of(step, attention_borders(context, columns));
  };
  const auto attend = [](std::uint32_t size, std::uint32_t window) {
    model::Attend made;
    made.heads = {.heads = 8, .kv_heads = 2, .size = size};
    made.kv = 0;
    made.out = 0;
    made.rules.window = window;
    return made;
  };
  context.plan.steps = {attend(128, 0), attend(128, 512)};
  EXPECT_EQ(positions(1, {0}), kBefore);
  EXPECT_EQ(positions(2, {5, 1023}), kBefore);
  EXPECT_EQ(positions(2, {5, 1024}), kAny);
  EXPECT_EQ(positions(2, {1024, 4095}), kBehind);
  EXPECT_EQ(positions(16, {0}), kAny) << "one range";
  context.context = 1024;
  EXPECT_EQ(positions(1, {0}), kAny) << "no sequence gets there";
  context.context = 4096;
  context.plan.steps = {attend(256, 0), attend(256, 512)};
  EXPECT_EQ(positions(512, {0, 1000}), kBefore);
  EXPECT_EQ(positions(512, {1024}), kBehind);
  context.plan.steps = {attend(256, 512)};
  EXPECT_EQ(positions(512, {1024}), kAny);
}

std::vector<std::uint32_t> widths(const std::vector<StepShape>& shapes) {
  std::vector<std::uint32_t> columns;
  for (const StepShape& shape : shapes)
    columns.push_back(shape.columns);
  return columns;
}

// Up to the width of a step that has prompts as well, every step finds a shape with less than 8/3 of the columns
// that it needs.
TEST(StepShapes, ManySequencesThatGenerateFindOneNear) {
  EXPECT_EQ(widths(step_shapes(2048, 256, 256, 12)),
            (std::vector<std::uint32_t>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}));
  for (const std::uint32_t mixed : {64U, 80U, 96U, 128U, 144U, 256U, 272U, 392U, 1536U}) {
    const std::vector<StepShape> shapes = step_shapes(2048, mixed, 256, 100);
    for (std::uint32_t streams = 1; streams <= mixed; ++streams)
      EXPECT_LT(3 * shape_for(shapes, streams, 1).columns, 8 * streams) << mixed;
    EXPECT_EQ(shape_for(shapes, mixed, 1).columns, mixed);
  }
}

// The shapes that are left out first cost prompts a little time, and cost sequences that generate
// nothing.
TEST(StepShapes, AShortRingKeepsTheNarrowerOnes) {
  EXPECT_EQ(widths(step_shapes(4096, 256, 256, 12)),
            (std::vector<std::uint32_t>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096}));
  EXPECT_EQ(widths(step_shapes(2048, 256, 256, 9)),
            (std::vector<std::uint32_t>{1, 2, 4, 8, 16, 32, 64, 128, 2048}));
}

struct LoadedSequence {
  std::vector<TokenId> tokens;
  std::uint32_t prompt = 0, done = 0;
  std::vector<Row> rows;

  // Begins now and then, with a prompt of random length and tokens.
  bool begin(std::mt19937& random) {
    if (!tokens.empty()) return true;
    if (random() % 4 != 0) return false;
    prompt = 1 + random() % 45;
    for (std::uint32_t i = 0; i < prompt; ++i)
      tokens.push_back(3 + random() % 256);
    return true;
  }
};

// Prompts arrive at random; each step takes as much of them as it has room for, and the answers are
// decoded beside each other.
TEST_F(FailingDevice, AMixedLoadRecordsNothingAnew) {
  options_.engine.max_batch = 6;
  options_.engine.prefill_chunk = 40;
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  Executor& executor = **loaded;
  const std::uint32_t page_tokens = executor.limits().page_tokens;
  const std::uint32_t pages_each = (executor.limits().context + page_tokens - 1) / page_tokens;
  ASSERT_GE(executor.limits().total_pages, 7 * pages_each);
  const auto pages_of = [&](std::uint32_t slot) {
    std::vector<PageIndex> pages;
    for (std::uint32_t i = 0; i < pages_each; ++i)
      pages.push_back(slot * pages_each + i);
    return pages;
  };
  const double recordings = counter(executor, "ring_recordings");
  const double allocations = counter(executor, "device_allocations");
  std::mt19937 random(3);
  std::vector<LoadedSequence> running, finished;
  std::vector<std::vector<PageIndex>> pages;
  for (std::uint32_t slot = 0; slot < 6; ++slot) {
    pages.push_back(pages_of(slot));
    running.emplace_back();
  }
  int steps = 0;
  for (; finished.size() < 12; ++steps) {
    std::vector<Column> columns;
    std::vector<LoadedSequence*> asked;
    std::uint32_t room = std::min(40U, executor.limits().max_columns - 6);
    for (std::uint32_t slot = 0; slot < 6; ++slot) {
      LoadedSequence& sequence = running[slot];
      if (!sequence.begin(random)) continue;
      const auto left = static_cast<std::uint32_t>(sequence.tokens.size()) - sequence.done;
      const std::uint32_t count = left == 1 ? 1 : std::min(left, room);
      if (left > 1) room -= count;
      for (std::uint32_t i = 0; i < count; ++i, ++sequence.done) {
        const bool last = sequence.done + 1 == sequence.tokens.size();
        columns.push_back({sequence.tokens[sequence.done], sequence.done, slot,
                           last ? Output::kLogits : Output::kNone});
        if (last) asked.push_back(&sequence);
      }
    }
    if (columns.empty()) continue;
    const auto rows = run_step(executor, columns, pages);
    ASSERT_TRUE(rows.ok()) << rows.error().message();
    ASSERT_EQ(rows->size(), asked.size());
    for (std::size_t i = 0; i < asked.size(); ++i) {
      asked[i]->rows.push_back((*rows)[i]);
      asked[i]->tokens.push_back((*rows)[i].best);
      if (asked[i]->rows.size() < 8) continue;
      finished.push_back(std::exchange(*asked[i], LoadedSequence{}));
    }
  }
  EXPECT_GT(steps, 20);
  EXPECT_EQ(counter(executor, "ring_recordings"), recordings);
  EXPECT_EQ(counter(executor, "device_allocations"), allocations);

  // Each sequence gives the same bits when it is computed alone, token by token.
  for (const LoadedSequence& sequence : finished) {
    std::vector<Row> alone;
    for (std::uint32_t i = 0; i + 1 < sequence.tokens.size(); ++i) {
      const bool asks = i + 1 >= sequence.prompt;
      const auto rows =
          run_step(executor, {{sequence.tokens[i], i, 0, asks ? Output::kLogits : Output::kNone}},
                   {pages_of(6)});
      ASSERT_TRUE(rows.ok()) << rows.error().message();
      alone.insert(alone.end(), rows->begin(), rows->end());
    }
    EXPECT_TRUE(alone == sequence.rows);
  }
}

}  // namespace
}  // namespace bulkhead::forward
