// Encoders: their embeddings against an evaluation in double of small random models, and that an embedding depends on
// its text alone.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tiny_model.hpp"
#include "transformer_harness.hpp"
#include "worker/engine/engine.hpp"
#include "worker/forward/cache_size.hpp"
#include "worker/forward/model_plan.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::forward {
namespace {

using ::testing::HasSubstr;
using tiny::Facts;
using tiny::Function;

Facts bert() {
  return {.architecture = "bert",
          .heads = 4,
          .kv_heads = 4,
          .size = 16,
          .turns = false,
          .layer_norms = true,
          .product_biases = true,
          .qkv_biases = true,
          .norms_before = false,
          .function = Function::kGelu,
          .gated = false,
          .encoder = true};
}

Facts nomic_bert() {
  return {.architecture = "nomic-bert",
          .heads = 4,
          .kv_heads = 4,
          .size = 16,
          .base = 1000,
          .layer_norms = true,
          .norms_before = false,
          .encoder = true,
          .fused_qkv = true};
}

// Each third layer sees everything, so there are both kinds. The window's side is shorter than the longest text.
Facts gemma_embedding(std::uint32_t dense) {
  Facts facts{.architecture = "gemma-embedding", .layers = 3, .size = 16, .base = 1e6};
  facts.window = 18;
  facts.window_base = 10000;
  facts.windowed = [](std::uint32_t layer) { return layer % 3 != 2; };
  facts.norms_after = facts.norms_heads = true;
  facts.function = Function::kGelu;
  facts.embedding_scale = std::sqrt(64.0);
  facts.encoder = true;
  facts.dense = dense;
  facts.add_keys = [](model::testing::GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "attention.sliding_window_pattern", 3);
  };
  return facts;
}

// Each third layer sees everything, the first one among them. The window's side is shorter than the longest text.
Facts modern_bert(const char* function) {
  Facts facts{
      .architecture = "modern-bert", .layers = 5, .kv_heads = 4, .size = 16, .base = 160000};
  facts.window = 18;
  facts.window_base = 700;
  facts.windowed = [](std::uint32_t layer) { return layer % 3 != 0; };
  facts.layer_norms = facts.plain_layer_norms = true;
  facts.norms_embeddings = facts.first_attends_plain = true;
  facts.fused_qkv = facts.fused_gate = true;
  facts.encoder = true;
  facts.function = std::string_view(function) == "silu" ? Function::kSilu : Function::kGelu;
  facts.add_keys = [function](model::testing::GgufBuilder& file, const std::string& prefix) {
    file.boolean(prefix + "attention.causal", false).f32(prefix + "rope.freq_base_swa", 700);
    file.text(prefix + "rope.scaling.type", "none").text(prefix + "hidden_activation", function);
  };
  return facts;
}

Facts eurobert() {
  return {.architecture = "eurobert", .size = 16, .base = 250000, .encoder = true, .pooling = 3};
}

Facts llama_embed() {
  return {.architecture = "llama-embed", .size = 16, .halves = false, .encoder = true};
}

// Models for embeddings that were made of one that writes text: the file says that attention sees
// the whole text.
Facts of_a_decoder(const std::string& architecture) {
  Facts facts{.architecture = architecture, .size = 16, .encoder = true};
  facts.halves = architecture != "llama";
  facts.qkv_biases = architecture == "qwen2";
  facts.norms_heads = architecture == "qwen3";
  facts.add_keys = [](model::testing::GgufBuilder& file, const std::string& prefix) {
    file.boolean(prefix + "attention.causal", false);
  };
  return facts;
}

Facts jina_bert_v3(bool fused) {
  Facts facts = bert();
  facts.architecture = "jina-bert-v3";
  facts.turns = true;
  facts.base = 20000;
  facts.fused_qkv = fused;
  return facts;
}

Facts nomic_bert_moe() {
  Facts facts = jina_bert_v3(true);
  facts.architecture = "nomic-bert-moe";
  facts.layers = 4;
  facts.experts = {.count = 8, .used = 2, .width = 96, .period = 2};
  facts.add_keys = [](model::testing::GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "moe_every_n_layers", 2);
  };
  return facts;
}

Facts neo_bert() {
  return {.architecture = "neo-bert",
          .kv_heads = 4,
          .size = 16,
          .halves = false,
          .fused_gate = true,
          .last_norm = "enc.output_norm",
          .encoder = true,
          .fused_qkv = true,
          .qkv_by_heads = true,
          .pooling = 2};
}

class Encoders : public TransformerTest {
 protected:
  Loaded load_tiny(const tiny::Model& made, const Options& options = {}) {
    const std::filesystem::path name =
        std::filesystem::temp_directory_path() / ("bulkhead-encoder-" + std::to_string(::getpid()));
    const std::string path = name.string() + ".gguf";
    std::ofstream(path, std::ios::binary) << made.file();
    Loaded loaded = load(name.string(), options);
    std::filesystem::remove(path);
    return loaded;
  }
};

std::vector<TokenId> text_of(std::size_t length, std::size_t seed) {
  std::vector<TokenId> text;
  for (std::size_t i = 0; i < length; ++i)
    text.push_back(static_cast<TokenId>((i * 37 + i * i * seed + seed * 11) % 96));
  return text;
}

// The columns of a whole text, whose last one asks for the text's embedding.
std::vector<Column> whole_text(const std::vector<TokenId>& text, std::uint32_t sequence) {
  std::vector<Column> columns = columns_of(text, sequence, Output::kGreedy);
  columns.back().output = Output::kHidden;
  return columns;
}

// The lanes mapping of GPUs takes other ways than a CPU's, and pages may hold floats or bytes.
struct Way {
  const char* name;
  bool lanes;
  config::KvType kv = config::KvType::kF16;
};
constexpr Way kWays[] = {{"the device's own mapping", false},
                         {"lanes", true},
                         {"pages of floats", false, config::KvType::kF32}};

TEST_F(Encoders, ComputeWhatTheirPapersSay) {
  std::vector<Facts> all{
      bert(),     nomic_bert(),  gemma_embedding(96), modern_bert("gelu"), modern_bert("silu"),
      eurobert(), llama_embed(), jina_bert_v3(true),  jina_bert_v3(false), nomic_bert_moe(),
      neo_bert()};
  for (const char* const name : {"llama", "qwen2", "qwen3"})
    all.push_back(of_a_decoder(name));
  for (const std::uint32_t pooling : {2U, 3U}) {
    all.push_back(bert());
    all.back().pooling = pooling;
    all.back().fused_qkv = true;
  }
  for (const Facts& facts : all) {
    for (const Way& way : kWays) {
      tiny::Model made(facts, 5);
      SCOPED_TRACE(facts.architecture + ", " + way.name);
      // How texts are pooled does not depend on the way.
      if (facts.architecture == "bert" && facts.pooling != 1 && &way != kWays) continue;
      Options options;
      options.lanes = way.lanes;
      options.kv = way.kv;
      const Loaded model = load_tiny(made, options);
      ASSERT_NE(model.executor, nullptr);
      ASSERT_TRUE(model.executor->limits().both_ways);
      EXPECT_EQ(model.executor->limits().context, facts.context);
      // Matrix units take products' inputs as halves.
      const double allowed = has_units(*model.executor) ? 8e-3 : 4e-3;
      for (const std::size_t length : {1U, 2U, 19U, 70U}) {
        const std::vector<TokenId> text = text_of(length, 3);
        const tiny::Vector want = made.embedding(text);
        // Where two experts are nearly equal, the device may choose the other one.
        constexpr double kLeastGap = 2e-3;
        if (length == 70 && made.least_gap() < kLeastGap) continue;
        ASSERT_GT(made.least_gap(), kLeastGap);
        const auto pages = pages_for(*model.executor, static_cast<std::uint32_t>(length));
        const std::vector<Row> rows = step(*model.executor, whole_text(text, 0), {pages});
        ASSERT_EQ(rows.size(), 1U);
        ASSERT_EQ(rows[0].hidden.size(), want.size());
        for (std::size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(static_cast<double>(rows[0].hidden[i]), want[i],
                      allowed * std::max(1.0, std::abs(want[i])))
              << "entry " << i << " of a text of " << length;
      }
    }
  }
}

// The mean of many columns with many entries takes many rounds, and llvmpipe ends an invocation's loops after
// 65,535 rounds in total.
TEST_F(Encoders, ComputeTheMeanOfALongText) {
  Facts facts = bert();
  facts.layers = 1;
  facts.width = 768;
  facts.hidden = 32;
  facts.context = 1024;
  tiny::Model made(facts, 5);
  const Loaded model = load_tiny(made);
  ASSERT_NE(model.executor, nullptr);
  const std::vector<TokenId> text = text_of(900, 3);
  const tiny::Vector want = made.embedding(text);
  const std::vector<Row> rows =
      step(*model.executor, whole_text(text, 0), {pages_for(*model.executor, 900)});
  ASSERT_EQ(rows.size(), 1U);
  ASSERT_EQ(rows[0].hidden.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(static_cast<double>(rows[0].hidden[i]), want[i], 4e-3) << "entry " << i;
}

TEST_F(Encoders, EmbeddingsDependOnTheirTextAlone) {
  for (const Facts& facts : {bert(), nomic_bert(), gemma_embedding(0), modern_bert("gelu"),
                             eurobert(), nomic_bert_moe(), neo_bert()}) {
    tiny::Model made(facts, 2);
    for (const bool lanes : {false, true}) {
      SCOPED_TRACE(facts.architecture + (lanes ? ", lanes" : ""));
      Options options;
      options.lanes = lanes;
      const Loaded model = load_tiny(made, options);
      ASSERT_NE(model.executor, nullptr);
      Executor& executor = *model.executor;
      const std::vector<TokenId> text = text_of(21, 5);
      const std::vector<std::vector<PageIndex>> pages{
          pages_for(executor, 40, 0), pages_for(executor, 40, 1), pages_for(executor, 40, 2)};
      const std::vector<Row> alone = step(executor, whole_text(text, 0), pages);
      ASSERT_EQ(alone.size(), 1U);
      // The same pages, which hold another text's keys after this one's.
      step(executor, whole_text(text_of(38, 7), 1), pages);
      expect_same_bits(step(executor, whole_text(text, 1), pages), alone, "in used pages");
      std::vector<Column> columns = whole_text(text_of(5, 9), 0);
      for (const std::uint32_t sequence : {1U, 2U}) {
        const std::vector<Column> more =
            whole_text(sequence == 1 ? text : text_of(17, 4), sequence);
        columns.insert(columns.end(), more.begin(), more.end());
      }
      const std::vector<Row> together = step(executor, columns, pages);
      ASSERT_EQ(together.size(), 3U);
      expect_same_bits({together[1]}, alone, "in company");
      if (lanes) continue;
      options.stages = 2;
      const Loaded split = load_tiny(made, options);
      ASSERT_NE(split.executor, nullptr);
      EXPECT_TRUE(split.executor->limits().both_ways);
      expect_same_bits(step(*split.executor, columns, pages), together, "over two devices");
    }
  }
}

TEST_F(Encoders, StepsWithAPartOfATextAreRefused) {
  const Facts facts = bert();
  tiny::Model made(facts, 2);
  const Loaded model = load_tiny(made);
  ASSERT_NE(model.executor, nullptr);
  const auto pages = pages_for(*model.executor, 40);
  const std::vector<std::span<const PageIndex>> sequences{pages};
  std::vector<Column> columns = whole_text(text_of(9, 1), 0);
  columns.erase(columns.begin());
  const Status status = model.executor->submit({columns, sequences});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("a part of a sequence"));
}

// What the engine makes of texts: as many as a step has room for, in turn.
TEST_F(Encoders, TheEngineReadsWholeTextsAndRefusesToWrite) {
  const Facts facts = bert();
  tiny::Model made(facts, 2);
  Options options;
  options.max_batch = 3;
  const Loaded model = load_tiny(made, options);
  ASSERT_NE(model.executor, nullptr);
  std::map<RequestId, std::vector<float>> values;
  std::map<RequestId, std::string> failures;
  const engine::Language language{nullptr, jinja::Chat()};
  engine::EngineOptions engine_options;
  engine_options.scheduler = {.max_batch = 3, .prefill_chunk = 9, .prefix_cache = true};
  engine::Engine engine(*model.executor, language, engine_options,
                        [&](const ipc::FromWorker& message) {
                          if (const auto* const embedded = std::get_if<ipc::Embedded>(&message))
                            values[embedded->request] = embedded->values;
                          if (const auto* const failed = std::get_if<ipc::Failed>(&message))
                            failures[failed->request] = failed->message;
                        });
  const auto run = [&] {
    while (engine.outstanding() > 0) {
      const auto ran = engine.turn([] {});
      ASSERT_TRUE(ran.ok()) << ran.error().message();
    }
  };
  constexpr std::size_t kLengths[] = {3, 250, 40, 1, 128, 129, 7, 256};
  for (std::size_t i = 0; i < std::size(kLengths); ++i) {
    engine.embed({RequestId{100 + i}, text_of(kLengths[i], i)});
    run();
  }
  for (std::size_t i = 0; i < std::size(kLengths); ++i)
    engine.embed({RequestId{i}, text_of(kLengths[i], i)});
  run();
  for (std::size_t i = 0; i < std::size(kLengths); ++i) {
    const std::vector<float>& together = values[RequestId{i}];
    EXPECT_EQ(together.size(), 64U) << i;
    EXPECT_EQ(together, values[RequestId{100 + i}]) << i;
  }
  engine.embed({RequestId{200}, text_of(257, 1)});
  ipc::Submit submit;
  submit.request = RequestId{201};
  submit.prompt = text_of(4, 1);
  submit.max_tokens = 2;
  engine.submit(std::move(submit));
  run();
  EXPECT_THAT(failures[RequestId{200}], HasSubstr("256"));
  EXPECT_THAT(failures[RequestId{201}], HasSubstr("it makes embeddings (/v1/embeddings"));
}

Result<model::ModelGraph> graph_of(const Facts& facts) {
  const std::string bytes = tiny::Model(facts, 1).file();
  BULKHEAD_TRY(const auto file, model::testing::open_bytes(bytes));
  return model::read_model(*file);
}

// Pages for whole contexts of many sequences would take gigabytes, and nobody would use them.
TEST(EncoderFiles, AKvCacheHoldsTheTextsOfTheStepsInFlight) {
  const Facts facts = bert();
  const auto graph = graph_of(facts);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  MemoryNeed need;
  need.kv.per_token = 98304;
  config::EngineSettings engine;
  engine.max_batch = 32;
  const CacheRoom room{std::uint64_t{80} << 30, gpu::DeviceKind::kDiscrete, "a GPU"};
  const auto size = plan_cache(room, *graph, engine, 0, 2 * facts.context, need);
  ASSERT_TRUE(size.ok()) << size.error().message();
  EXPECT_EQ(size->context, facts.context);
  EXPECT_EQ(size->pages, 2 * facts.context / gpu::kernels::kPageTokens + engine.max_batch);
}

TEST(EncoderFiles, MayBePooledInAnotherWayButNotInUnknownOnes) {
  Facts facts = bert();
  auto graph = graph_of(facts);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_TRUE(is_encoder(*graph));
  EXPECT_TRUE(model::first_operation<model::PoolColumns>(*graph)->mean);
  set_pooling(*graph, model::TextPooling::kFirst);
  EXPECT_FALSE(model::first_operation<model::PoolColumns>(*graph)->mean);
  set_pooling(*graph, model::TextPooling::kLast);
  EXPECT_EQ(model::first_operation<model::PoolColumns>(*graph), nullptr);
  facts.pooling = 9;
  EXPECT_THAT(graph_of(facts).error().message(), HasSubstr("bert.pooling_type"));
}

// Matrix units take some norms as parts of products. This norm's result is no product's input, but the stream itself.
TEST(EncoderFiles, ANormInPlaceStaysAStep) {
  const std::string bytes = tiny::Model(gemma_embedding(96), 1).file();
  const auto file = model::testing::open_bytes(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message();
  const auto graph = model::read_model(**file);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  gpu::kernels::Mapping units;
  units.units = true;
  const auto plan = plan_model(*graph, **file, units, gpu::kernels::KvFormat::kF16);
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  EXPECT_TRUE(plan->fuses);
  EXPECT_EQ(std::ranges::count(plan->operands, model::kStream, &PlannedOperands::next_input), 0);
}

// ModernBERT's heads for ranking read the mean, BERT's the first token, unless the file says otherwise.
TEST(EncoderFiles, SayWhatAHeadForRankingReads) {
  const auto reads_mean = [](Facts facts, std::uint32_t named) {
    facts.pooling = 4;
    const auto add_keys = facts.add_keys;
    facts.add_keys = [named, add_keys](model::testing::GgufBuilder& file,
                                       const std::string& prefix) {
      if (add_keys) add_keys(file, prefix);
      if (named != 0) file.u32(prefix + "classifier.pooling_type", named);
    };
    const auto graph = graph_of(facts);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    return graph.ok() && model::first_operation<model::PoolColumns>(*graph)->mean;
  };
  EXPECT_TRUE(reads_mean(modern_bert("gelu"), 0));
  EXPECT_FALSE(reads_mean(modern_bert("gelu"), 2));
  EXPECT_FALSE(reads_mean(bert(), 0));
  EXPECT_TRUE(reads_mean(bert(), 1));
}

TEST(EncoderFiles, WithAnUnknownFunctionAreRefused) {
  EXPECT_THAT(graph_of(modern_bert("relu")).error().message(),
              HasSubstr("modern-bert.hidden_activation"));
}

// A layer whose norm is missing is damaged, unless it is the first one.
TEST(EncoderFiles, NormsOfLaterLayersMustBeThere) {
  const Facts facts = modern_bert("gelu");
  std::string bytes = tiny::Model(facts, 1).file();
  bytes.replace(bytes.find("blk.1.attn_norm"), 15, "blk.1.attn_none");
  const auto file = model::testing::open_bytes(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_THAT(model::read_model(**file).error().message(),
              HasSubstr("blk.1.attn_norm.weight is missing"));
}

TEST(EncoderFiles, NeedExpertsIfTheirArchitectureHasThem) {
  Facts facts = nomic_bert_moe();
  facts.experts = {};
  EXPECT_THAT(graph_of(facts).error().message(), HasSubstr("nomic-bert-moe.expert_count"));
  facts = nomic_bert_moe();
  facts.add_keys = nullptr;
  EXPECT_THAT(graph_of(facts).error().message(), HasSubstr("nomic-bert-moe.moe_every_n_layers"));
}

// Nothing would compute them.
TEST(EncoderFiles, NormsOfEmbeddingsElsewhereAreRefused) {
  EXPECT_THAT(graph_of({.architecture = "llama", .norms_embeddings = true}).error().message(),
              HasSubstr("tensor token_embd_norm.weight takes part in a computation"));
}

// Such layers belong to embedding models' files; elsewhere nothing would compute them.
TEST(EncoderFiles, DenseLayersOfOtherArchitecturesAreRefused) {
  EXPECT_THAT(graph_of({.architecture = "llama", .dense = 32}).error().message(),
              HasSubstr("tensor dense_2.weight takes part in a computation"));
}

// Dense layers read what is pooled, however it is.
TEST(EncoderFiles, ArePooledBeforeDenseLayers) {
  Facts facts = gemma_embedding(96);
  for (const std::uint32_t pooling : {1U, 3U}) {
    facts.pooling = pooling;
    auto graph = graph_of(facts);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    set_pooling(*graph, model::TextPooling::kFirst);
    const auto& last = graph->layers.back().operations;
    ASSERT_GT(last.size(), 5U);
    EXPECT_TRUE(std::holds_alternative<model::Norm>(last[last.size() - 5]));
    EXPECT_TRUE(std::holds_alternative<model::PoolColumns>(last[last.size() - 4]));
    EXPECT_TRUE(std::holds_alternative<model::Copy>(last[last.size() - 3]));
  }
}

}  // namespace
}  // namespace bulkhead::forward
