// Model files with one thing wrong in each, and what the error must say about it. All are made from one small valid
// file.
#pragma once

#include <cstring>
#include <functional>
#include <ostream>
#include <string>

#include "tests/unit/model/gguf_builder.hpp"

namespace bulkhead::model::testing {

struct Broken {
  const char* name;
  std::function<std::string()> make;
  const char* says;  // part of the message
};

inline void PrintTo(const Broken& broken, std::ostream* out) {
  *out << broken.name;
}

inline std::string patched(std::size_t at, std::uint64_t value, std::size_t width) {
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

inline const Broken kBroken[] = {
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
    {"type_nvfp4", changed([](GgufBuilder& f) { f.tensors[0].type = 40; }), "is of type NVFP4"},
    {"type_unsupported", changed([](GgufBuilder& f) { f.tensors[0].type = 35; }),
     "is of type TQ2_0"},
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
     "afmoe, apertus, arcee, bailingmoe2, bert, chatglm, cohere2, command-r, deci, deepseek2, "
     "dots1, ernie4_5, ernie4_5-moe, eurobert, exaone, exaone4, exaone-moe, falcon-h1, gemma, "
     "gemma2, gemma3, gemma4, gemma-embedding, glm4, glm4moe, gpt-oss, granite, granitehybrid, "
     "granitemoe, hunyuan-dense, hunyuan-moe, hy_v3, internlm2, jina-bert-v3, kimi-linear, lfm2, "
     "lfm2moe, llama, llama-embed, mellum, minicpm, minimax-m2, mistral3, mistral4, modern-bert, "
     "nemotron, nemotron_h, nemotron_h_moe, neo-bert, nomic-bert, nomic-bert-moe, olmo2, olmoe, "
     "phi3, qwen2, qwen2moe, qwen2vl, qwen3, qwen35, qwen35moe, qwen3moe, qwen3next, qwen3vl, "
     "qwen3vlmoe, seed_oss, smollm3, starcoder2, step35"},
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

}  // namespace bulkhead::model::testing
