#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/model-maker/random_blocks.hpp"
#include "tools/model-maker/write_model.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model_maker {
namespace {

using model::TensorType;
using testing::HasSubstr;

class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() /
              ("bulkhead-make-model-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string bytes_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

Result<std::uint64_t> make(Shape shape, const std::string& type, const std::string& path,
                           std::uint64_t seed = 1, unsigned threads = 2) {
  Metadata vocabulary, metadata;
  BULKHEAD_RETURN_IF_ERROR(add_made_vocabulary(shape, vocabulary));
  BULKHEAD_TRY(const Plan plan, plan_tensors(shape, type));
  add_model_keys(shape, plan.file_type, metadata);
  metadata.append(vocabulary);
  return write_model(shape, plan, metadata, {path, seed, threads, nullptr});
}

float half(std::uint16_t bits) {
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

// Uses what each type's file says about its blocks; tests/unit/forward compares that with the formats' definition.
template <typename Type>
std::vector<float> weights_of(const std::vector<std::byte>& bytes) {
  namespace k = gpu::kernels;
  constexpr k::TensorRow kRow = Type::kRow;
  std::vector<float> weights;
  for (std::size_t at = 0; at < bytes.size(); at += kRow.block_bytes) {
    const auto* block = reinterpret_cast<const std::uint8_t*>(bytes.data()) + at;
    if constexpr (kRow.is_float()) {
      weights.push_back(Type::value(block));
    } else {
      for (std::uint32_t i = 0; i < kRow.block_weights; ++i) {
        const auto byte =
            static_cast<std::uint8_t>(Type::eight(block, i / 32, i % 32 / 8) >> (8 * (i % 8)));
        const int number = kRow.units.quants == k::UnitQuants::kBytes
                               ? static_cast<std::int8_t>(byte)
                           : kRow.has_codebook() ? kRow.codebook[byte & 15]
                                                 : byte - static_cast<int>(kRow.units.bias);
        float scale = 0, minimum = 0;
        if constexpr (kRow.units.scales == k::UnitScales::kSupers) {
          scale = half(Type::super_scale(block)) * Type::sub_scale(block, i / 16);
        } else {
          const k::UnitScale made = Type::unit_scale(block, i / 32, i % 32 / 16);
          scale = half(made.scale);
          if constexpr (kRow.units.minima) minimum = half(made.minimum);
        }
        weights.push_back(static_cast<float>(number) * scale + minimum);
      }
    }
  }
  return weights;
}

std::vector<float> weights_of(TensorType type, const std::vector<std::byte>& bytes) {
  using Read = std::vector<float> (*)(const std::vector<std::byte>&);
  static constexpr Read kReads[] = {
#define BULKHEAD_TYPE(NAME) weights_of<gpu::kernels::types::NAME>,
      BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
  };
  return kReads[gpu::kernels::tensor_place(type)](bytes);
}

class EachType : public testing::TestWithParam<std::string> {};

// Every type that can be computed has mean 0 and the wanted deviation, so that activations stay in range.
TEST(Weights, HaveTheWantedSpread) {
  for (const gpu::kernels::TensorRow& row : gpu::kernels::kTensorRows) {
    const auto type = static_cast<TensorType>(row.id);
    const auto* traits = model::traits(type);
    std::vector<std::byte> bytes(std::size_t{262144} / traits->block_weights * traits->block_bytes);
    Random random(7, 1, 2);
    random_weights(type, 0.02, random, bytes);
    const std::vector<float> weights = weights_of(type, bytes);
    ASSERT_EQ(weights.size(), 262144U);
    double sum = 0, squares = 0;
    for (const float w : weights) {
      ASSERT_TRUE(std::isfinite(w)) << traits->name;
      sum += w;
      squares += double{w} * w;
    }
    EXPECT_NEAR(sum / 262144, 0, 0.0005) << traits->name;
    // MXFP4's scales are powers of two.
    const double bound = type == TensorType::kMXFP4 ? 0.004 : 0.001;
    EXPECT_NEAR(std::sqrt(squares / 262144), 0.02, bound) << traits->name;
  }
}

TEST(Weights, HalfIsRoundedToNearest) {
  EXPECT_EQ(gpu::kernels::types::to_half(1.0F), 0x3c00);
  EXPECT_EQ(gpu::kernels::types::to_half(-2.0F), 0xc000);
  EXPECT_EQ(gpu::kernels::types::to_half(65504.0F), 0x7bff);
  EXPECT_EQ(gpu::kernels::types::to_half(1e6F), 0x7bff);  // the largest
  EXPECT_EQ(gpu::kernels::types::to_half(std::ldexp(1.0F, -24)), 1);
  EXPECT_EQ(gpu::kernels::types::to_half(std::ldexp(1.0F, -14)), 0x0400);
  EXPECT_EQ(gpu::kernels::types::to_half(1.0F + std::ldexp(1.0F, -11)),
            0x3c00);  // a value half way is rounded to even
  EXPECT_EQ(gpu::kernels::types::to_half(1.0F + 3 * std::ldexp(1.0F, -11)), 0x3c02);
}

TEST_P(EachType, FilesAreReadAsModels) {
  const Folder folder;
  for (const char* name :
       {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-moe", "tiny-mixtral", "tiny-latent",
        "tiny-glm", "tiny-starcoder2", "tiny-nemotron", "tiny-delta", "tiny-mamba",
        "tiny-convolutions", "tiny-convolutions-moe", "tiny-two-kinds", "tiny-apertus",
        "tiny-gemma-embedding", "tiny-modern-bert", "tiny-eurobert", "tiny-nomic-bert-moe"}) {
    const std::string path = folder.file(std::string(name) + "-" + GetParam() + ".gguf");
    const Shape shape = *preset(name);
    const auto written = make(shape, GetParam(), path);
    ASSERT_TRUE(written.ok()) << written.error().message();
    EXPECT_EQ(std::filesystem::file_size(path), *written);

    const auto file = model::GgufFile::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message();
    const auto graph = model::read_model(**file);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    EXPECT_EQ(graph->layers.size(), shape.layers);
    if (const auto* const latents = model::first_operation<model::RotateLatent>(*graph)) {
      EXPECT_EQ(latents->heads.heads, shape.heads);
      EXPECT_EQ(latents->heads.size, shape.latent + shape.turning);
      continue;
    }
    const auto* const rotate = model::first_operation<model::Rotate>(*graph);
    ASSERT_NE(rotate, nullptr);
    EXPECT_EQ(graph->embedding, shape.embedding);
    EXPECT_EQ(rotate->heads.heads, shape.heads);
    EXPECT_EQ(rotate->heads.kv_heads, shape.kv_heads);
    const bool two_kinds = shape.full_interval != 0;
    EXPECT_EQ(rotate->heads.size, two_kinds ? shape.window_head_size : shape.head_size);
    EXPECT_EQ(graph->vocabulary, shape.vocabulary);
    EXPECT_EQ(graph->tied_output(), shape.tied_output);
    EXPECT_EQ(rotate->bias != model::kAbsent, shape.qkv_bias);
    const bool norms = shape.architecture.starts_with("qwen3") || shape.architecture == "apertus" ||
                       shape.architecture == "gemma-embedding";
    EXPECT_EQ(rotate->q_gain != model::kAbsent, two_kinds || shape.taps != 0 || norms);
    const auto layers_with_states =
        std::ranges::count(shape.kinds, 'M') + std::ranges::count(shape.kinds, 'C');
    const auto delta_layers = shape.delta_values != 0 ? shape.layers / 4 * 3 : 0;
    EXPECT_EQ(graph->states.size(), shape.kinds.empty() ? delta_layers : layers_with_states);
    const auto* const experts = model::first_operation<model::Experts>(*graph);
    EXPECT_EQ(experts != nullptr ? experts->router.experts : 0, shape.experts);
  }
}

// A file as converters wrote it before April 2025.
TEST(JoinedLatents, AreReadAsTheSameModel) {
  const Folder folder;
  Shape shape = *preset("tiny-latent");
  shape.joined_latents = true;
  const std::string path = folder.file("joined.gguf");
  ASSERT_TRUE(make(shape, "Q4_K_M", path).ok());
  const auto file = model::GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message();
  const model::TensorInfo* const joined = (*file)->find_tensor("blk.1.attn_kv_b.weight");
  ASSERT_NE(joined, nullptr);
  EXPECT_EQ(joined->ne, (std::array<std::uint64_t, 4>{128, 4 * (64 + 64), 1, 1}));
  EXPECT_EQ((*file)->find_tensor("blk.1.attn_k_b.weight"), nullptr);
  EXPECT_FALSE((*file)->has("deepseek2.attention.key_length_mla"));
  const auto graph = model::read_model(**file);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  const auto* const latents = model::first_operation<model::RotateLatent>(*graph);
  ASSERT_NE(latents, nullptr);
  EXPECT_EQ(latents->heads.size, shape.latent + shape.turning);
  shape = *preset("tiny-llama");
  shape.joined_latents = true;
  EXPECT_THAT(check(shape).error().message(), HasSubstr("joined-latents"));
}

std::string plain_name(const testing::TestParamInfo<std::string>& info) {
  return info.param;
}
INSTANTIATE_TEST_SUITE_P(MakeModel, EachType, testing::ValuesIn(file_types()), plain_name);

TEST(MakeModel, SameSeedSameFileWhateverTheThreads) {
  const Folder folder;
  Shape shape = *preset("tiny-llama");
  shape.vocabulary = 40000;  // enough for several chunks
  ASSERT_TRUE(make(shape, "F16", folder.file("a"), 5, 1).ok());
  ASSERT_TRUE(make(shape, "F16", folder.file("b"), 5, 4).ok());
  ASSERT_TRUE(make(shape, "F16", folder.file("c"), 6, 4).ok());
  EXPECT_TRUE(bytes_of(folder.file("a")) == bytes_of(folder.file("b")));
  EXPECT_FALSE(bytes_of(folder.file("a")) == bytes_of(folder.file("c")));
}

TEST(MakeModel, MadeVocabularyEncodesAnyTextAndBack) {
  const Folder folder;
  Shape shape = *preset("tiny-qwen2");
  shape.vocabulary = 20000;
  const std::string path = folder.file("v.gguf");
  ASSERT_TRUE(make(shape, "Q8_0", path).ok());
  const auto file = model::GgufFile::open(path);
  ASSERT_TRUE(file.ok());
  const auto tokenizer = model::Tokenizer::from_gguf(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  const std::string text = "bada tolu kasire, \xc3\xa4\xe6\x97\xa5 42!\n";
  const auto ids = (*tokenizer)->encode(text, false, false);
  EXPECT_EQ((*tokenizer)->decode(ids), text);
  EXPECT_LT(ids.size(), text.size());  // the merges are used
}

// llama.cpp refuses these architectures' files without these keys.
TEST(MakeModel, WritesKeysThatLlamaCppRequires) {
  const Folder folder;
  const auto made = [&](Shape shape) {
    const std::string path = folder.file(shape.name + ".gguf");
    EXPECT_TRUE(make(std::move(shape), "F16", path).ok());
    return std::move(*model::GgufFile::open(path));
  };
  Shape granite = *preset("tiny-llama");
  granite.architecture = "granite";
  EXPECT_EQ(*made(granite)->get_float("granite.logit_scale"), 1.0);
  const auto gemma = made(*preset("tiny-two-kinds"));
  EXPECT_EQ(*gemma->get_uint("gemma4.embedding_length_per_layer_input"), 0U);
  const Shape delta = *preset("tiny-delta");
  const auto sections = *made(delta)->get_ints("qwen35moe.rope.dimension_sections");
  ASSERT_TRUE(sections.has_value());
  ASSERT_EQ(sections->size(), 4U);
  // Each pair that turns belongs to one of them.
  EXPECT_EQ(std::accumulate(sections->begin(), sections->end(), std::int64_t{0}),
            delta.turning / 2);
}

// Compares with llama.cpp's mixtures for shapes whose choices are known from real files.
TEST(Mixes, MoreBitsWhereLlamaCppPutsThem) {
  const Plan plan = *plan_tensors(*preset("qwen2.5-7b"), "Q4_K_M");
  std::vector<int> v_layers, down_layers;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.name == "output.weight") {
      EXPECT_EQ(tensor.type, TensorType::kQ6_K);
    }
    if (tensor.name == "token_embd.weight") {
      EXPECT_EQ(tensor.type, TensorType::kQ4_K);
    }
    if (tensor.name.find("attn_q.weight") != std::string::npos) {
      EXPECT_EQ(tensor.type, TensorType::kQ4_K);
    }
    const bool more = tensor.type == TensorType::kQ6_K;
    const int layer = tensor.name.starts_with("blk.") ? std::stoi(tensor.name.substr(4)) : -1;
    if (more && tensor.name.ends_with("attn_v.weight")) v_layers.push_back(layer);
    if (more && tensor.name.ends_with("ffn_down.weight")) down_layers.push_back(layer);
  }
  EXPECT_THAT(v_layers, testing::ElementsAre(0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27));
  EXPECT_EQ(v_layers, down_layers);
  EXPECT_GT(plan.bytes, 4'600'000'000U);
  EXPECT_LT(plan.bytes, 4'750'000'000U);

  const std::uint64_t f16 = plan_tensors(*preset("llama-3.2-1b"), "F16")->bytes;
  EXPECT_NEAR(static_cast<double>(f16), 2.4716e9, 0.005e9);
}

// Published models have as many weights as their names say.
TEST(Presets, HaveTheSizesOfTheirModels) {
  const auto billions = [](const char* name) {
    const Result<Shape> shape = preset(name);
    const Result<Plan> plan = plan_tensors(*shape, "F16");
    EXPECT_TRUE(plan.ok()) << name << ": " << plan.error().message();
    std::uint64_t weights = 0;
    if (plan.ok()) {
      for (const PlannedTensor& tensor : plan->tensors)
        weights += tensor.elements();
    }
    return static_cast<double>(weights) / 1e9;
  };
  EXPECT_NEAR(billions("qwen2.5-14b"), 14.77, 0.01);
  EXPECT_NEAR(billions("qwen2.5-32b"), 32.76, 0.01);
  EXPECT_NEAR(billions("qwen2.5-72b"), 72.71, 0.01);
  EXPECT_NEAR(billions("qwen3-32b"), 32.76, 0.01);
  EXPECT_NEAR(billions("qwen3-30b-a3b"), 30.53, 0.01);
  EXPECT_NEAR(billions("mixtral-8x7b"), 46.70, 0.01);
  EXPECT_NEAR(billions("phi-4"), 14.66, 0.01);
  EXPECT_NEAR(billions("mistral-small-24b"), 23.57, 0.01);
  EXPECT_NEAR(billions("gemma-3-12b"), 11.77, 0.01);
  EXPECT_NEAR(billions("gemma-4-26b-a4b"), 25.23, 0.01);
  EXPECT_NEAR(billions("gpt-oss-20b"), 20.91, 0.01);
  EXPECT_NEAR(billions("qwen3.5-27b"), 26.90, 0.01);
  EXPECT_NEAR(billions("qwen3.5-35b-a3b"), 34.66, 0.01);
}

TEST(Mixes, RowsThatDontFitFallBack) {
  const Plan plan = *plan_tensors(*preset("tiny-qwen3"), "Q4_K_M");
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.name == "blk.0.attn_q.weight") {
      EXPECT_EQ(tensor.type, TensorType::kQ5_0);
    }
    if (tensor.name == "blk.1.ffn_down.weight") {
      EXPECT_EQ(tensor.type, TensorType::kQ8_0);
    }
  }
}

// As root, `-o /dev/null` put the model in the device's place.
TEST(Mistakes, AnOutputThatIsNoFileStaysWhatItIs) {
  const Folder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto made = make(*preset("tiny-llama"), "Q8_0", pipe);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message(), HasSubstr("is no regular file; name a file to write"));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_FALSE(std::filesystem::exists(pipe + ".partial"));
}

// The tokens before the padding are those of the same vocabulary without padding.
TEST(MadeVocabulary, PaddingComesLast) {
  const Folder folder;
  Shape shape = *preset("tiny-llama");
  std::vector<std::vector<std::string>> texts;
  std::vector<std::vector<std::int64_t>> types;
  for (const std::uint32_t padding : {0U, 9U}) {
    const std::string path = folder.file(std::to_string(padding));
    shape.vocabulary = 300 + padding;
    shape.padding = padding;
    ASSERT_TRUE(make(shape, "Q8_0", path).ok());
    const auto file = model::GgufFile::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message();
    const auto tokens = **(*file)->get_strings("tokenizer.ggml.tokens");
    texts.emplace_back(tokens.begin(), tokens.end());
    types.push_back(**(*file)->get_ints("tokenizer.ggml.token_type"));
    EXPECT_EQ((*file)->get_uint("tokenizer.ggml.eos_token_id")->value(), 298U);
  }
  ASSERT_EQ(texts[1].size(), 309U);
  EXPECT_EQ(texts[1][300], "[PAD300]");
  for (std::size_t i = 300; i < 309; ++i)
    EXPECT_EQ(types[1][i], 5);
  texts[1].resize(300);
  types[1].resize(300);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(types[0], types[1]);
}

TEST(Mistakes, AreNamed) {
  EXPECT_THAT(preset("llama-9").error().message(), HasSubstr("llama-3.2-1b"));
  EXPECT_THAT(plan_tensors(*preset("tiny-llama"), "Q7_K").error().message(), HasSubstr("Q4_K_M"));
  Shape odd = *preset("tiny-llama");
  odd.kv_heads = 3;
  EXPECT_THAT(plan_tensors(odd, "F16").error().message(), HasSubstr("multiple of kv-heads"));
  odd = *preset("tiny-llama");
  odd.vocabulary = 100;
  Metadata metadata;
  EXPECT_THAT(add_made_vocabulary(odd, metadata).error().message(), HasSubstr("too small"));
}

}  // namespace
}  // namespace bulkhead::model_maker
