#include <sys/resource.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/log_capture.hpp"
#include "tests/unit/model/broken_files.hpp"
#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/inspect.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {
namespace {

using testing::Broken;
using testing::Bytes;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::kBroken;
using testing::open_bytes;
using testing::small_llama;

// Does what a worker does with a file before it computes.
Status load_all(const std::string& bytes) {
  auto file = open_bytes(bytes);
  if (!file.ok()) return file.error();
  auto graph = read_model(**file);
  if (!graph.ok()) return graph.error();
  auto tokenizer = Tokenizer::from_gguf(**file);
  if (!tokenizer.ok()) return tokenizer.error();
  return {};
}

TEST(Gguf, ReadsMetadataAndTensors) {
  const std::string bytes = small_llama().bytes();
  auto file = open_bytes(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ((*file)->version(), 3U);
  EXPECT_EQ((*file)->get_uint("llama.block_count").value(), 1U);
  EXPECT_EQ((*file)->get_string("general.name").value(), "small");
  EXPECT_EQ((*file)->array_length("tokenizer.ggml.tokens"), 260U);
  const TensorInfo* tensor = (*file)->find_tensor("blk.0.ffn_up.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->rows(), 64U);
  EXPECT_EQ(tensor->row_bytes(), 34U);
  EXPECT_EQ(tensor->data.size(), 64U * 34U);
  EXPECT_EQ((*file)->find_tensor("blk.1.ffn_up.weight"), nullptr);
  EXPECT_TRUE(load_all(bytes).ok()) << load_all(bytes).error().message();
}

TEST(Gguf, NamesBothTypesWhenAKeyIsOfAnother) {
  const std::string bytes = small_llama().bytes();
  auto file = open_bytes(bytes);
  ASSERT_TRUE(file.ok());
  const auto wrong = (*file)->get_uint("general.name");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message(), HasSubstr("general.name"));
  EXPECT_THAT(wrong.error().message(), HasSubstr("string"));
  EXPECT_THAT(wrong.error().message(), HasSubstr("unsigned integer"));
  EXPECT_FALSE((*file)->get_uint("absent").value().has_value());
}

class BrokenFile : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenFile, GivesAnErrorThatSaysWhat) {
  const std::string bytes = GetParam().make();
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  const Status status = load_all(bytes);
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr(GetParam().says));
  EXPECT_THAT(status.error().message(), HasSubstr("test.gguf"));
  // This is the peak of the whole process, so it is an upper bound for this file.
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 100 * 1024);
}

INSTANTIATE_TEST_SUITE_P(All, BrokenFile, ::testing::ValuesIn(kBroken),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string whole = small_llama().bytes();
  // The builder pads the last tensor's data; the part that the file needs ends before that.
  const std::size_t step = 7;
  for (std::size_t size = 0; size + 64 < whole.size(); size += step) {
    const std::string cut = whole.substr(0, size);
    EXPECT_FALSE(load_all(cut).ok()) << "cut at " << size;
  }
}

TEST(Gguf, AnyFlippedByteOfTheHeaderIsSurvived) {
  const std::string whole = small_llama().bytes();
  const std::size_t header = whole.size() - small_llama().data_bytes;
  for (std::size_t at = 0; at < header; ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    (void)load_all(
        bytes);  // it must not crash, even under sanitizers; many changed bits leave a valid file
  }
}

TEST(Leftovers, PartsThatSeeAreReportedOnce) {
  GgufBuilder file = small_llama();
  for (const char* name : {"v.blk.0.attn_q.weight", "v.patch_embd.weight", "mm.0.weight"})
    file.tensor(name, {32});
  const std::string bytes = file.bytes();
  const test::LogCapture logged;
  ASSERT_TRUE(load_all(bytes).ok()) << load_all(bytes).error().message();
  EXPECT_THAT(
      logged.text(),
      HasSubstr("[info] test.gguf: 3 tensors of a part that reads images or sound are not used"));
}

TEST(Inspect, AModelDoesNotRunWithoutItsTokenizer) {
  GgufBuilder file = small_llama();
  file.drop("tokenizer.ggml.model");
  file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "made-up");
  const std::string bytes = file.bytes();
  const auto opened = open_bytes(bytes);
  ASSERT_TRUE(opened.ok());
  const auto text = describe(**opened, false);
  ASSERT_TRUE(text.ok()) << text.error().message();
  EXPECT_THAT(
      *text,
      HasSubstr("runs:         no: test.gguf: tokenizer.ggml.pre \"made-up\" is not supported"));
  EXPECT_THAT(*text, HasSubstr("architecture: llama"));
  const std::string whole = small_llama().bytes();
  const auto good = open_bytes(whole);
  ASSERT_TRUE(good.ok());
  EXPECT_THAT(*describe(**good, false), HasSubstr("runs:         yes"));
}

class SplitModel : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("bulkhead-split-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(int part) const {
    return (folder_ / ("m-0000" + std::to_string(part) + "-of-00003.gguf")).string();
  }
  void write(int part, std::uint16_t number) {
    GgufBuilder file;
    file.value("split.no", ValueType::kUint16, Bytes().number(number));
    file.value("split.count", ValueType::kUint16, Bytes().number<std::uint16_t>(3));
    file.value("split.tensors.count", ValueType::kInt32, Bytes().number<std::int32_t>(3));
    file.tensor("tensor" + std::to_string(part), {8});
    const std::string bytes = file.bytes();
    std::ofstream(path(part), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::filesystem::path folder_;
};

TEST_F(SplitModel, LoadsAsOne) {
  for (std::uint16_t part = 1; part <= 3; ++part)
    write(part, static_cast<std::uint16_t>(part - 1));
  auto file = GgufFile::open(path(1));
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ((*file)->tensors().size(), 3U);
  EXPECT_NE((*file)->find_tensor("tensor3"), nullptr);
}

TEST_F(SplitModel, NamesTheMissingPart) {
  write(1, 0);
  write(3, 2);
  auto file = GgufFile::open(path(1));
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message(), HasSubstr(path(2)));
}

TEST_F(SplitModel, PointsToTheFirstPart) {
  for (std::uint16_t part = 1; part <= 3; ++part)
    write(part, static_cast<std::uint16_t>(part - 1));
  auto file = GgufFile::open(path(2));
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message(), HasSubstr(path(1)));
}

TEST_F(SplitModel, RefusesPartsOutOfOrder) {
  write(1, 0);
  write(2, 2);
  write(3, 1);
  EXPECT_FALSE(GgufFile::open(path(1)).ok());
}

TEST(Gguf, FoldersAndMissingFilesAreSaidSo) {
  EXPECT_THAT(GgufFile::open("/tmp").error().message(), HasSubstr("folder"));
  EXPECT_EQ(GgufFile::open("/no/such/file.gguf").error().code(), ErrorCode::kNotFound);
}

TEST(ModelConfig, RefusesWhatWouldComputeSomethingElse) {
  const auto says = [](auto change) {
    GgufBuilder file = small_llama();
    change(file);
    const Status status = load_all(file.bytes());
    return status.ok() ? std::string("ok") : status.error().message();
  };
  EXPECT_THAT(says([](auto& f) { f.u32("llama.expert_count", 8); }), HasSubstr("experts"));
  EXPECT_THAT(says([](auto& f) { f.text("llama.rope.scaling.type", "dynamic"); }),
              HasSubstr("dynamic"));
  EXPECT_THAT(says([](auto& f) { f.u32("llama.attention.value_length", 8); }), HasSubstr("differ"));
  EXPECT_THAT(says([](auto& f) { f.tensor("blk.0.ffn_gate.bias", {32}); }),
              HasSubstr("blk.0.ffn_gate.bias"));
  EXPECT_THAT(says([](auto& f) { f.tensor("blk.0.ffn_up.bias", {8}); }), HasSubstr("ffn_up.bias"));
  EXPECT_THAT(says([](auto& f) { f.tensor("blk.0.attn_q.bias", {32}); }),
              HasSubstr("attn_{q,k,v}"));
  EXPECT_EQ(says([](auto& f) { f.tensor("something.new", {8}); }), "ok");
}

// Blocks that draft tokens are counted as blocks, and their tensors exist.
TEST(ModelConfig, LeavesOutBlocksThatDraft) {
  GgufBuilder file = small_llama();
  file.drop("llama.block_count");
  file.u32("llama.block_count", 2).u32("llama.nextn_predict_layers", 1);
  file.tensor("blk.1.nextn.eh_proj.weight", {64, 32}).tensor("blk.1.attn_norm.weight", {32});
  const std::string bytes = file.bytes();
  const auto graph = read_model(**open_bytes(bytes));
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_EQ(graph->layers.size(), 1U);
  file.tensor("blk.2.attn_norm.weight", {32});
  EXPECT_THAT(load_all(file.bytes()).error().message(), HasSubstr("blk.2.attn_norm.weight"));
}

TEST(ModelConfig, OnlySomeArchitecturesHaveABlockThatDrafts) {
  const auto refusal = [](const GgufBuilder& file) {
    const std::string bytes = file.bytes();
    const auto block = read_drafting_block(**open_bytes(bytes));
    return block.ok() ? "ok" : block.error().message();
  };
  GgufBuilder file = small_llama();
  EXPECT_THAT(refusal(file), HasSubstr("has no block that drafts tokens"));
  file.drop("llama.block_count");
  file.u32("llama.block_count", 2).u32("llama.nextn_predict_layers", 1);
  EXPECT_THAT(refusal(file), HasSubstr("not supported for architecture llama"));
}

// A block takes the model's tensors in place of those that it lacks.
TEST(ModelConfig, ABlockThatDraftsSharesTheModelsTensors) {
  GgufBuilder file;
  file.text("general.architecture", "glm4moe");
  file.u32("glm4moe.block_count", 3).u32("glm4moe.nextn_predict_layers", 1);
  file.u32("glm4moe.context_length", 64).u32("glm4moe.embedding_length", 32);
  file.u32("glm4moe.feed_forward_length", 64).u32("glm4moe.vocab_size", 8);
  file.u32("glm4moe.attention.head_count", 2).u32("glm4moe.attention.head_count_kv", 1);
  file.f32("glm4moe.attention.layer_norm_rms_epsilon", 1e-5F);
  const std::string bytes = file.bytes();
  const auto opened = open_bytes(bytes);
  const auto names = [&](bool own, bool output) {
    const auto block = imagine_drafting_block(**opened, [&](const std::string& name) {
      return name == "output.weight" ? output : own && name.find(".nextn.") != std::string::npos;
    });
    EXPECT_TRUE(block.ok()) << block.error().message();
    if (!block.ok()) return std::vector<std::string>();
    EXPECT_EQ(block->layers.size(), 1U);
    EXPECT_EQ(block->kv.size(), 1U);
    const VectorRow& gain = block->vectors[block->output_gain];
    return std::vector<std::string>{block->tensors[block->embedding_rows.tensor].name,
                                    block->tensors[gain.parts[0].tensor].name,
                                    block->tensors[block->output_rows.tensor].name};
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(true, true),
            (Names{"blk.2.nextn.embed_tokens.weight", "blk.2.nextn.shared_head_norm.weight",
                   "blk.2.nextn.shared_head_head.weight"}));
  EXPECT_EQ(names(false, true),
            (Names{"token_embd.weight", "output_norm.weight", "output.weight"}));
  EXPECT_EQ(names(false, false),
            (Names{"token_embd.weight", "output_norm.weight", "token_embd.weight"}));
}

// Older files of mixtures have one tensor for each expert.
TEST(ModelConfig, ExpertsOfDifferentTypesAreRefusedWithTheWayOut) {
  const auto mixture = [](std::uint32_t odd) {
    GgufBuilder file = small_llama();
    for (const char* part : {"gate", "up", "down"}) {
      const std::string name = std::string("blk.0.ffn_") + part;
      file.drop_tensor(name + ".weight");
      const bool down = name.ends_with("down");
      for (int expert = 0; expert < 4; ++expert)
        file.tensor(name + "." + std::to_string(expert) + ".weight",
                    {down ? 64U : 32U, down ? 32U : 64U}, down && expert == 2 ? odd : 8);
    }
    file.tensor("blk.0.ffn_gate_inp.weight", {32, 4});
    file.u32("llama.expert_count", 4).u32("llama.expert_used_count", 2);
    const std::string bytes = file.bytes();
    const auto graph = read_model(**open_bytes(bytes));
    return graph.ok() ? std::string("runs") : graph.error().message();
  };
  EXPECT_EQ(mixture(8), "runs");
  EXPECT_THAT(mixture(2), HasSubstr("blk.0.ffn_down.0.weight is Q8_0, and blk.0.ffn_down.2.weight "
                                    "is Q4_0; convert the model anew"));
}

TEST(ModelConfig, RefusesExpertsOfWhichTokensTakeNone) {
  GgufBuilder file = small_llama();
  file.drop("general.architecture");
  file.text("general.architecture", "qwen2moe").u32("llama.expert_count", 4);
  for (auto& [key, value] : file.metadata)
    if (key.starts_with("llama.")) key.replace(0, 5, "qwen2moe");
  const Status status = load_all(file.bytes());
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("qwen2moe.expert_used_count is 0"));
}

TEST(ModelConfig, RefusesPartsOfModelsByName) {
  const auto says = [](const char* key, const char* value) {
    GgufBuilder file = small_llama();
    if (std::string(key) == "general.architecture") file.drop(key);
    file.text(key, value);
    const Status status = load_all(file.bytes());
    return status.ok() ? std::string("ok") : status.error().message();
  };
  EXPECT_THAT(says("general.architecture", "clip"), HasSubstr("mmproj"));
  EXPECT_THAT(says("general.architecture", "clip"), HasSubstr("supported architectures are: "));
  EXPECT_THAT(says("general.type", "adapter"), HasSubstr("LoRA"));
  EXPECT_THAT(says("general.architecture", "jina-bert-v2"),
              ::testing::AllOf(HasSubstr("encoder"), HasSubstr("Qwen3-Embedding")));
  EXPECT_THAT(says("general.architecture", "controlvector"), HasSubstr("control vector"));
  EXPECT_EQ(says("general.type", "model"), "ok");

  // llama-imatrix writes a type and no architecture.
  GgufBuilder matrix;
  matrix.text("general.type", "imatrix").u32("imatrix.chunk_count", 4);
  EXPECT_THAT(load_all(matrix.bytes()).error().message(), HasSubstr("importance matrix"));
}

// What people give in place of a GGUF file.
TEST(Gguf, NamesOtherKindsOfFiles) {
  const auto says = [](std::string bytes) {
    bytes.resize(64, ' ');
    return load_all(bytes).error().message();
  };
  EXPECT_THAT(says("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git lfs pull"));
  EXPECT_THAT(says("<!DOCTYPE html>"), HasSubstr("a web page"));
  EXPECT_THAT(says("<!doctype html>"), HasSubstr("a web page"));
  EXPECT_THAT(says("PK\x03\x04"), HasSubstr("zip archive"));
  EXPECT_THAT(says("\x1f\x8b"), HasSubstr("unpack it"));
  EXPECT_THAT(says("\xfd"
                   "7zXZ"),
              HasSubstr("unpack it"));
  EXPECT_THAT(says("lmgg"), HasSubstr("convert it to GGUF v3"));
  EXPECT_THAT(says(std::string("\x10\x27\0\0\0\0\0\0{\"__metadata__\"", 23)),
              HasSubstr("a safetensors file; convert its folder"));
  EXPECT_THAT(says("abcd"), HasSubstr("not a GGUF model file"));
}

TEST(ModelConfig, ReadsBiasesScalingAndWindow) {
  GgufBuilder file = small_llama();
  file.tensor("blk.0.attn_q.bias", {32})
      .tensor("blk.0.attn_k.bias", {16})
      .tensor("blk.0.attn_v.bias", {16});
  file.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0F);
  file.u32("llama.attention.sliding_window", 48);
  const std::string bytes = file.bytes();
  auto opened = open_bytes(bytes);
  ASSERT_TRUE(opened.ok());
  const auto graph = read_model(**opened);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  const auto* const rotate = first_operation<Rotate>(*graph);
  ASSERT_NE(rotate, nullptr);
  EXPECT_NE(rotate->bias, kAbsent);
  EXPECT_TRUE(graph->tied_output());
  EXPECT_EQ(graph->context, 48U);
  EXPECT_EQ(rotate->heads.size, 16U);
  const Rope& rope = graph->ropes[rotate->rope];
  EXPECT_EQ(rope.pairing, RopePairing::kAdjacent);
  ASSERT_EQ(rope.pairs(), 8U);
  EXPECT_EQ(rope.frequencies[0], 0.25) << "positions are divided by the linear factor";
}

// Reads the file's model, which must succeed, and calls `check` with the graph.
template <typename Check>
void expect_graph(const GgufBuilder& file, Check check) {
  const std::string bytes = file.bytes();
  const auto opened = open_bytes(bytes);
  ASSERT_TRUE(opened.ok());
  const auto graph = read_model(**opened);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  check(*graph);
}

// As in llama.cpp, every layer of Phi-3 sees all positions, whatever window the file names.
TEST(ModelConfig, KeepsPhi3sContextBeyondItsWindow) {
  GgufBuilder file = small_llama();
  for (auto& [key, value] : file.metadata) {
    if (key.starts_with("llama.")) key = "phi3." + key.substr(6);
  }
  file.drop("general.architecture");
  file.text("general.architecture", "phi3");
  for (const char* name : {"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"})
    file.drop_tensor("blk.0." + std::string(name) + ".weight");
  file.tensor("blk.0.attn_qkv.weight", {32, 64}, 8).tensor("blk.0.ffn_up.weight", {32, 128}, 8);
  for (const std::uint32_t window : {47U, 64U, 0x40000001U, 0xFFFFFFFFU}) {
    file.drop("phi3.attention.sliding_window");
    file.u32("phi3.attention.sliding_window", window);
    expect_graph(file, [](const ModelGraph& graph) { EXPECT_EQ(graph.context, 64U); });
  }
}

// A window of the whole context hides nothing. Cohere 2's layers with a window still are those whose heads turn.
TEST(ModelConfig, TakesAWindowOfAllPositionsAsNone) {
  GgufBuilder file = small_llama();
  for (auto& [key, value] : file.metadata) {
    if (key.starts_with("llama.")) key = "cohere2." + key.substr(6);
  }
  file.drop("general.architecture");
  file.drop("cohere2.attention.layer_norm_rms_epsilon");
  file.text("general.architecture", "cohere2").f32("cohere2.attention.layer_norm_epsilon", 1e-5F);
  file.drop_tensor("blk.0.ffn_norm.weight");
  for (const std::uint32_t window : {0U, 16U, 63U, 64U, 65U, 0x40000001U, 0xFFFFFFFFU}) {
    file.drop("cohere2.attention.sliding_window");
    file.u32("cohere2.attention.sliding_window", window);
    expect_graph(file, [window](const ModelGraph& graph) {
      EXPECT_EQ(graph.context, 64U);
      EXPECT_EQ(first_operation<Attend>(graph)->rules.window, window < 64 ? window : 0);
      EXPECT_NE(first_operation<Rotate>(graph)->rope, kAbsent);
    });
  }
}

// Pairs that turn more than 32 times within the original context keep their frequency; those that turn less than once
// are slowed down by the factor. With base 10,000, 16 entries and 64 positions, pair 0 turns 10 times.
TEST(ModelConfig, StretchesByYarn) {
  GgufBuilder file = small_llama();
  file.text("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 8.0F);
  file.u32("llama.rope.scaling.original_context_length", 64);
  const auto rope_of = [](const GgufBuilder& from) {
    const std::string bytes = from.bytes();
    const auto opened = open_bytes(bytes);
    const auto graph = read_model(**opened);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    return graph.ok() ? graph->ropes.at(0) : Rope{};
  };
  const Rope rope = rope_of(file);
  ASSERT_EQ(rope.pairs(), 8U);
  // The ramp leads from pair 0 to pair ceil(16 * ln(64 / (2 pi)) / (2 * ln(10000))) = 3.
  for (std::uint32_t i = 0; i < 8; ++i) {
    const double plain = std::pow(10'000.0, -2.0 * i / 16), way = std::min(i / 3.0, 1.0);
    EXPECT_NEAR(rope.frequencies[i], plain * (1 - way) + plain / 8 * way, 1e-12) << i;
  }
  EXPECT_NEAR(rope.magnitude, 0.1 * std::log(8.0) + 1, 1e-9);
  file.f32("llama.rope.scaling.yarn_log_multiplier", 1.0F);
  EXPECT_NEAR(rope_of(file).magnitude, 1, 1e-9);
}

TEST(Inspect, DescribesAModel) {
  const std::string bytes = small_llama().bytes();
  auto file = open_bytes(bytes);
  ASSERT_TRUE(file.ok());
  const auto text = describe(**file, true);
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("runs:         yes"));
  EXPECT_THAT(*text, HasSubstr("blk.0.ffn_down.weight"));
  EXPECT_THAT(*text, HasSubstr("Q8_0"));
}

}  // namespace
}  // namespace bulkhead::model
