// Writes small GGUF files in memory. They are valid unless a test says otherwise.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/model/gguf.hpp"
#include "worker/model/gguf_part.hpp"

namespace bulkhead::model::testing {

class Bytes {
 public:
  template <typename T>
  Bytes& number(T value) {
    const auto* at = reinterpret_cast<const char*>(&value);
    data_.append(at, sizeof value);
    return *this;
  }
  Bytes& string(std::string_view text) {
    number<std::uint64_t>(text.size());
    data_ += text;
    return *this;
  }
  Bytes& raw(std::string_view text) {
    data_ += text;
    return *this;
  }
  const std::string& data() const { return data_; }
  std::size_t size() const { return data_.size(); }

 private:
  std::string data_;
};

class GgufBuilder {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> ne;
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
  };

  std::uint32_t version = 3;
  std::vector<std::pair<std::string, std::string>> metadata;  // key, type and value as bytes
  std::vector<Tensor> tensors;
  std::uint64_t data_bytes = 0;

  GgufBuilder& value(const std::string& key, ValueType type, const Bytes& bytes) {
    metadata.emplace_back(
        key, Bytes().number(static_cast<std::uint32_t>(type)).raw(bytes.data()).data());
    return *this;
  }
  GgufBuilder& u32(const std::string& key, std::uint32_t v) {
    return value(key, ValueType::kUint32, Bytes().number(v));
  }
  GgufBuilder& f32(const std::string& key, float v) {
    return value(key, ValueType::kFloat32, Bytes().number(v));
  }
  GgufBuilder& boolean(const std::string& key, bool v) {
    return value(key, ValueType::kBool, Bytes().number(static_cast<std::uint8_t>(v)));
  }
  GgufBuilder& text(const std::string& key, std::string_view v) {
    return value(key, ValueType::kString, Bytes().string(v));
  }
  GgufBuilder& strings(const std::string& key, const std::vector<std::string>& v) {
    Bytes bytes;
    bytes.number<std::uint32_t>(8).number<std::uint64_t>(v.size());
    for (const auto& each : v)
      bytes.string(each);
    return value(key, ValueType::kArray, bytes);
  }
  template <typename T>
  GgufBuilder& numbers(const std::string& key, ValueType type, const std::vector<T>& v) {
    Bytes bytes;
    bytes.number(static_cast<std::uint32_t>(type)).template number<std::uint64_t>(v.size());
    for (const T& each : v)
      bytes.number(each);
    return value(key, ValueType::kArray, bytes);
  }
  // Places the tensor after the others; F32 by default.
  GgufBuilder& tensor(const std::string& name, std::vector<std::uint64_t> ne,
                      std::uint32_t type = 0) {
    const TensorTypeTraits* traits_of = traits(static_cast<TensorType>(type));
    std::uint64_t elements = 1;
    for (const auto n : ne)
      elements *= n;
    tensors.push_back({name, std::move(ne), type, data_bytes});
    if (traits_of != nullptr)
      data_bytes += elements / traits_of->block_weights * traits_of->block_bytes;
    data_bytes = (data_bytes + 31) / 32 * 32;
    return *this;
  }
  void drop(std::string_view key) {
    std::erase_if(metadata, [key](const auto& entry) { return entry.first == key; });
  }
  void drop_tensor(std::string_view name) {
    std::erase_if(tensors, [name](const auto& t) { return t.name == name; });
  }
  Tensor& find(std::string_view name) {
    for (Tensor& each : tensors)
      if (each.name == name) return each;
    std::abort();
  }

  std::string bytes() const {
    Bytes out;
    out.raw("GGUF").number(version).number<std::uint64_t>(tensors.size());
    out.number<std::uint64_t>(metadata.size());
    for (const auto& [key, value_bytes] : metadata)
      out.string(key).raw(value_bytes);
    for (const Tensor& each : tensors) {
      out.string(each.name).number(static_cast<std::uint32_t>(each.ne.size()));
      for (const auto n : each.ne)
        out.number(n);
      out.number(each.type).number(each.offset);
    }
    std::string all = out.data();
    all.resize((all.size() + 31) / 32 * 32 + data_bytes);
    return all;
  }
};

// A model with one layer, 32 wide, 2 heads of 16, 260 tokens; it runs as a "llama".
inline GgufBuilder small_llama() {
  GgufBuilder file;
  file.text("general.architecture", "llama").text("general.name", "small");
  file.u32("llama.block_count", 1)
      .u32("llama.context_length", 64)
      .u32("llama.embedding_length", 32);
  file.u32("llama.feed_forward_length", 64).u32("llama.attention.head_count", 2);
  file.u32("llama.attention.head_count_kv", 1).f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types{2, 3, 3};
  std::vector<float> scores{0, 0, 0};
  for (unsigned byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    tokens.emplace_back(text);
    types.push_back(6);
    scores.push_back(0);
  }
  tokens.emplace_back("a");
  types.push_back(1);
  scores.push_back(-1);
  file.text("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", tokens);
  file.numbers("tokenizer.ggml.token_type", ValueType::kInt32, types);
  file.numbers("tokenizer.ggml.scores", ValueType::kFloat32, scores);
  file.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
  file.tensor("token_embd.weight", {32, 260}, 8).tensor("output_norm.weight", {32});
  file.tensor("blk.0.attn_norm.weight", {32}).tensor("blk.0.attn_q.weight", {32, 32}, 8);
  file.tensor("blk.0.attn_k.weight", {32, 16}, 8).tensor("blk.0.attn_v.weight", {32, 16}, 8);
  file.tensor("blk.0.attn_output.weight", {32, 32}, 8).tensor("blk.0.ffn_norm.weight", {32});
  file.tensor("blk.0.ffn_gate.weight", {32, 64}, 8).tensor("blk.0.ffn_up.weight", {32, 64}, 8);
  file.tensor("blk.0.ffn_down.weight", {64, 32}, 8);
  return file;
}

// The GgufFile reads `bytes` in place, so they must outlive it: a temporary string does not compile.
inline Result<std::unique_ptr<GgufFile>> open_bytes(const std::string& bytes) {
  return GgufFile::from_memory(std::as_bytes(std::span(bytes.data(), bytes.size())), "test.gguf");
}
Result<std::unique_ptr<GgufFile>> open_bytes(std::string&& bytes) = delete;

template <typename Bytes>
concept CanBeOpened = requires(Bytes&& bytes) {
  open_bytes(std::forward<Bytes>(bytes));
};
static_assert(CanBeOpened<const std::string&> && !CanBeOpened<std::string>);

}  // namespace bulkhead::model::testing
