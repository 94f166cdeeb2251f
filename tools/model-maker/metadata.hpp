// GGUF metadata as bytes: it is written key by key; the tokenizer's keys are made up or copied from a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "tools/model-maker/shape.hpp"

namespace bulkhead::model_maker {

class Metadata {
 public:
  void add_uint(std::string_view key, std::uint32_t value);
  void add_float(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_string(std::string_view key, std::string_view value);
  void add_strings(std::string_view key, const std::vector<std::string>& values);
  void add_ints(std::string_view key, const std::vector<std::int32_t>& values);
  // Adds a key with its value exactly as they are in another file.
  void add_raw(std::string_view key_and_value);
  void append(const Metadata& other);

  const std::string& bytes() const { return bytes_; }
  std::uint64_t count() const { return count_; }

 private:
  void key(std::string_view key, std::uint32_t type);
  std::string bytes_;
  std::uint64_t count_ = 0;
};

// Append an integer or a length-prefixed text in GGUF's format.
void append_u32(std::string& out, std::uint32_t value);
void append_u64(std::string& out, std::uint64_t value);
void append_text(std::string& out, std::string_view text);

// The model's own keys; below, a file with these keys and no tensors.
std::string header_without_tensors(const Metadata& metadata);

void add_model_keys(const Shape& shape, std::uint32_t file_type, Metadata& metadata);
// Adds those that only the shape's architecture has (own_keys.cpp).
void add_own_keys(const Shape& shape, Metadata& metadata);

// Adds a byte-level BPE vocabulary that can encode any text: 256 bytes, syllables built by merges, and at its end
// ChatML's and the usual special tokens, followed by the padding. kInvalidArgument if there are fewer than 270 tokens
// besides the padding.
Status add_made_vocabulary(const Shape& shape, Metadata& metadata);

// Copies every tokenizer.* key of a GGUF file; returns the number of its tokens.
Result<std::uint32_t> copy_vocabulary(const std::string& path, Metadata& metadata);

}  // namespace bulkhead::model_maker
