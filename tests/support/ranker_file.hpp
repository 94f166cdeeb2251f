// Makes model files that rank out of files that generate: metadata and tensors are added, everything else stays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "worker/model/gguf.hpp"

namespace bulkhead::test {

class GgufAdditions {
 public:
  explicit GgufAdditions(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    auto file = model::GgufFile::from_memory(std::as_bytes(std::span(bytes_)), path.string());
    EXPECT_TRUE(file.ok()) << file.error().message();
    file_ = *std::move(file);
  }

  const model::GgufFile& file() const { return *file_; }

  void add_uint(std::string_view key, std::uint32_t value) {
    begin_key(key, 4);
    put<std::uint32_t>(metadata_, value);
  }
  void add_text(std::string_view key, std::string_view value) {
    begin_key(key, 8);
    put_text(metadata_, value);
  }
  void add_texts(std::string_view key, const std::vector<std::string>& values) {
    begin_key(key, 9);
    put<std::uint32_t>(metadata_, 8);
    put<std::uint64_t>(metadata_, values.size());
    for (const std::string& value : values)
      put_text(metadata_, value);
  }
  void add_tensor(const std::string& name, model::TensorType type,
                  const std::vector<std::uint64_t>& shape, std::string data) {
    put_text(tensors_, name);
    put<std::uint32_t>(tensors_, static_cast<std::uint32_t>(shape.size()));
    for (const std::uint64_t entries : shape)
      put<std::uint64_t>(tensors_, entries);
    put<std::uint32_t>(tensors_, static_cast<std::uint32_t>(type));
    put<std::uint64_t>(tensors_, old_data().size() + data_.size());
    data_ += padded(std::move(data));
    ++tensor_count_;
  }
  // The bytes of a row of the file's own tensor.
  std::string row(const std::string& tensor, std::size_t index) const {
    const model::TensorInfo& info = *file_->find_tensor(tensor);
    const auto bytes = info.data.subspan(index * info.row_bytes(), info.row_bytes());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // Returns the whole file. New keys come before the file's own, and so do the descriptions of new
  // tensors.
  std::string made() const {
    constexpr std::size_t kCounts = 8, kHeader = 24;
    std::size_t first = bytes_.size(), end = 0;  // of the tensors' descriptions
    for (const model::TensorInfo& tensor : file_->tensors()) {
      const std::size_t name = offset(tensor.name.data());
      first = std::min(first, name - 8);
      end = std::max(end, name + tensor.name.size() + 4 + 8 * tensor.dimensions + 4 + 8);
    }
    std::string out = bytes_.substr(0, kHeader) + metadata_ +
                      bytes_.substr(kHeader, first - kHeader) + tensors_ +
                      bytes_.substr(first, end - first);
    const auto raise = [&out](std::size_t at, std::uint64_t by) {
      std::uint64_t count = 0;
      std::memcpy(&count, &out[at], 8);
      count += by;
      std::memcpy(&out[at], &count, 8);
    };
    raise(kCounts, tensor_count_);
    raise(kCounts + 8, key_count_);
    return padded(std::move(out)) + old_data() + data_;
  }
  void write(const std::filesystem::path& path) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << made();
  }

 private:
  template <typename T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void put_text(std::string& to, std::string_view text) {
    put<std::uint64_t>(to, text.size());
    to += text;
  }
  void begin_key(std::string_view key, std::uint32_t type) {
    put_text(metadata_, key);
    put<std::uint32_t>(metadata_, type);
    ++key_count_;
  }
  std::size_t offset(const void* at) const {
    return static_cast<std::size_t>(static_cast<const char*>(at) - bytes_.data());
  }
  static std::string padded(std::string text) {
    text.resize((text.size() + 31) / 32 * 32);
    return text;
  }
  // The data of the file's own tensors.
  std::string old_data() const {
    std::size_t first = bytes_.size();
    for (const model::TensorInfo& tensor : file_->tensors())
      first = std::min(first, offset(tensor.data.data()));
    return padded(bytes_.substr(first));
  }

  std::string bytes_, metadata_, tensors_, data_;
  std::uint64_t key_count_ = 0, tensor_count_ = 0;
  std::unique_ptr<model::GgufFile> file_;
};

}  // namespace bulkhead::test
