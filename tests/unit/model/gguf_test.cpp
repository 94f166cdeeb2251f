#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/inspect.hpp"
#include "worker/model/model_config.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {
namespace {

using testing::Bytes;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::open_bytes;
using testing::small_llama;

// What a worker does with a file before it computes.
Status load_all(const std::string& bytes) {
  auto file = open_bytes(bytes);
  if (!file.ok()) return file.error();
  auto config = read_model_config(**file);
  if (!config.ok()) return config.error();
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

struct Broken {
  const char* name;
  std::function<std::string()> make;
  const char* says;
};

std::string patched(std::size_t at, std::uint64_t value, std::size_t width) {
  std::string bytes = small_llama().bytes();
  std::memcpy(bytes.data() + at, &value, width);
  return bytes;
}
template <typename F>
std::function<std::string()> changed(F change) {
  return [change] {
    GgufBuilder file = small_llama();
    change(file);
    return file.bytes();
  };
}

const Broken kBroken[] = {
    {"empty", [] { return std::string(); }, "too few"},
    {"magic", [] { return patched(0, 0x21212121, 4); }, "not a GGUF"},
    {"version_1", [] { return patched(4, 1, 4); }, "version 1"},
    {"version_99", [] { return patched(4, 99, 4); }, "version 99"},
    {"big_endian", [] { return patched(4, 0x03000000, 4); }, "big-endian"},
    {"tensor_count_huge", [] { return patched(8, ~0ULL, 8); }, "tensors"},
    {"tensor_count_one_more", changed([](GgufBuilder& f) {
       f.version = 3;
       f.tensors.push_back(f.tensors[0]);
     }),
     "appears twice"},
    {"tensor_count_wrong", [] { return patched(8, 60'000, 8); }, "at byte"},
    {"metadata_count_huge", [] { return patched(16, 1ULL << 60, 8); }, "metadata keys"},
    {"metadata_count_less", [] { return patched(16, 3, 8); }, "at byte"},
    {"metadata_count_more", [] { return patched(16, 40, 8); }, "at byte"},
    {"key_length_huge", [] { return patched(24, ~0ULL, 8); }, "claims"},
    {"key_length_past_end", [] { return patched(24, 900, 8); }, "byte 24"},
    {"key_bad_utf8", changed([](GgufBuilder& f) { f.u32("\xFF\xFE", 1); }), "printable ASCII"},
    {"key_empty", changed([](GgufBuilder& f) { f.u32("", 1); }), "printable ASCII"},
    {"key_twice", changed([](GgufBuilder& f) { f.u32("llama.block_count", 1); }), "appears twice"},
    {"value_type_unknown",
     changed([](GgufBuilder& f) { f.value("x", static_cast<ValueType>(77), Bytes()); }),
     "unknown type 77"},
    {"string_huge",
     changed([](GgufBuilder& f) { f.value("x", ValueType::kString, Bytes().number(~0ULL - 3)); }),
     "claims"},
    {"array_huge", changed([](GgufBuilder& f) {
       f.value("x", ValueType::kArray, Bytes().number(4U).number(1ULL << 62));
     }),
     "elements"},
    {"array_of_huge_strings", changed([](GgufBuilder& f) {
       f.value("x", ValueType::kArray,
               Bytes().number(8U).number<std::uint64_t>(2).number(1ULL << 63).number(1ULL << 63));
     }),
     "claims"},
    {"array_element_type", changed([](GgufBuilder& f) {
       f.value("x", ValueType::kArray, Bytes().number(99U).number<std::uint64_t>(1));
     }),
     "element type"},
    {"array_nested_deep", changed([](GgufBuilder& f) {
       Bytes deep;
       for (int i = 0; i < 1000; ++i)
         deep.number(9U).number<std::uint64_t>(1);
       f.value("x", ValueType::kArray, deep);
     }),
     "nested"},
    {"bool_two", changed([](GgufBuilder& f) {
       f.value("x", ValueType::kBool, Bytes().number<std::uint8_t>(2));
     }),
     "neither"},
    {"alignment_zero", changed([](GgufBuilder& f) { f.u32("general.alignment", 0); }), "alignment"},
    {"alignment_odd", changed([](GgufBuilder& f) { f.u32("general.alignment", 33); }), "alignment"},
    {"alignment_huge", changed([](GgufBuilder& f) { f.u32("general.alignment", 1U << 31); }),
     "alignment"},
    {"alignment_text", changed([](GgufBuilder& f) { f.text("general.alignment", "32"); }),
     "alignment"},
    {"dimensions_five", changed([](GgufBuilder& f) {
       f.tensors[0].ne = {32, 1, 1, 1, 1};
     }),
     "5 dimensions"},
    {"dimensions_none", changed([](GgufBuilder& f) { f.tensors[0].ne = {}; }), "0 dimensions"},
    {"shape_zero", changed([](GgufBuilder& f) {
       f.tensors[0].ne = {32, 0};
     }),
     "impossible length"},
    {"shape_overflows", changed([](GgufBuilder& f) {
       f.tensors[0].ne = {1ULL << 32, 1ULL << 32, 1ULL << 32};
     }),
     "impossible length"},
    {"shape_past_file", changed([](GgufBuilder& f) {
       f.tensors[0].ne = {32, 1ULL << 40};
     }),
     "past the end"},
    {"row_no_block", changed([](GgufBuilder& f) {
       f.tensors[0].ne = {33, 260};
     }),
     "block"},
    {"type_unsupported", changed([](GgufBuilder& f) { f.tensors[0].type = 16; }), "IQ2_XXS"},
    {"type_unknown", changed([](GgufBuilder& f) { f.tensors[0].type = 12345; }), "number 12345"},
    {"offset_past_file", changed([](GgufBuilder& f) { f.tensors[1].offset = 1ULL << 40; }),
     "past the end"},
    {"offset_wraps", changed([](GgufBuilder& f) { f.tensors[1].offset = ~0ULL - 31; }),
     "past the end"},
    {"offset_unaligned", changed([](GgufBuilder& f) { f.tensors[1].offset += 4; }), "alignment"},
    {"tensors_same_place",
     changed([](GgufBuilder& f) { f.tensors[2].offset = f.tensors[1].offset; }), "overlaps"},
    {"tensors_overlap", changed([](GgufBuilder& f) { f.tensors[1].offset = 32; }), "overlaps"},
    {"name_empty", changed([](GgufBuilder& f) { f.tensors[1].name = ""; }), "printable"},
    {"name_long", changed([](GgufBuilder& f) { f.tensors[1].name = std::string(5000, 'n'); }),
     "limit"},
    {"name_bad_utf8", changed([](GgufBuilder& f) { f.tensors[1].name = "a\xC0\xAF"; }),
     "printable UTF-8"},
    {"architecture_missing", changed([](GgufBuilder& f) { f.drop("general.architecture"); }),
     "general.architecture"},
    {"architecture_other", changed([](GgufBuilder& f) {
       f.drop("general.architecture");
       f.text("general.architecture", "mamba");
     }),
     "llama, qwen2, qwen3"},
    {"layers_huge", changed([](GgufBuilder& f) {
       f.drop("llama.block_count");
       f.u32("llama.block_count", ~0U);
     }),
     "block_count"},
    {"layers_more_than_there_are", changed([](GgufBuilder& f) {
       f.drop("llama.block_count");
       f.u32("llama.block_count", 2);
     }),
     "blk.1.attn_norm.weight is missing"},
    {"heads_zero", changed([](GgufBuilder& f) {
       f.drop("llama.attention.head_count");
       f.u32("llama.attention.head_count", 0);
     }),
     "head_count"},
    {"heads_text", changed([](GgufBuilder& f) {
       f.drop("llama.attention.head_count");
       f.text("llama.attention.head_count", "2");
     }),
     "string"},
    {"tensor_missing", changed([](GgufBuilder& f) { f.drop_tensor("blk.0.ffn_up.weight"); }),
     "blk.0.ffn_up.weight is missing"},
    {"tensor_shape", changed([](GgufBuilder& f) {
       f.find("blk.0.attn_k.weight").ne = {32, 8};
     }),
     "shape"},
    {"tokens_duplicate", changed([](GgufBuilder& f) {
       f.drop("tokenizer.ggml.tokens");
       f.strings("tokenizer.ggml.tokens", std::vector<std::string>(260, "same"));
     }),
     "same text"},
    {"token_types_short", changed([](GgufBuilder& f) {
       f.drop("tokenizer.ggml.token_type");
       f.numbers<std::int32_t>("tokenizer.ggml.token_type", ValueType::kInt32, {1, 2, 3});
     }),
     "token_type has 3"},
    {"scores_missing", changed([](GgufBuilder& f) { f.drop("tokenizer.ggml.scores"); }), "scores"},
    {"bos_past_end", changed([](GgufBuilder& f) {
       f.drop("tokenizer.ggml.bos_token_id");
       f.u32("tokenizer.ggml.bos_token_id", 260);
     }),
     "260"},
};

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
  // The peak of the whole process, so an upper bound of this file's.
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 100 * 1024);
}

INSTANTIATE_TEST_SUITE_P(All, BrokenFile, ::testing::ValuesIn(kBroken),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string whole = small_llama().bytes();
  // The builder pads the last tensor's data; what the file needs ends before that.
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
    (void)load_all(bytes);  // no crash, under the sanitizers too; many flips leave a valid file
  }
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
  EXPECT_THAT(says([](auto& f) { f.text("llama.rope.scaling.type", "yarn"); }), HasSubstr("yarn"));
  EXPECT_THAT(says([](auto& f) { f.u32("llama.attention.value_length", 8); }), HasSubstr("differ"));
  EXPECT_THAT(says([](auto& f) { f.tensor("blk.0.attn_output.bias", {32}); }),
              HasSubstr("blk.0.attn_output.bias"));
  EXPECT_THAT(says([](auto& f) { f.tensor("blk.0.ffn_up.bias", {64}); }), HasSubstr("ffn_up.bias"));
  EXPECT_THAT(says([](auto& f) { f.tensor("blk.0.attn_q.bias", {32}); }),
              HasSubstr("attn_{q,k,v}"));
  EXPECT_EQ(says([](auto& f) { f.tensor("something.new", {8}); }), "ok");
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
  const auto config = read_model_config(**opened);
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_TRUE(config->tied_output);
  EXPECT_EQ(config->rope_scaling, RopeScaling::kLinear);
  EXPECT_EQ(config->rope_linear_factor, 4.0F);
  EXPECT_EQ(config->context, 48U);
  EXPECT_EQ(config->rope_pairing, RopePairing::kAdjacent);
  EXPECT_EQ(config->head_size, 16U);
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
