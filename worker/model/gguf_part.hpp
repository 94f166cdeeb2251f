// One GGUF file on disk, parsed and checked. gguf.cpp makes a model of one or more of them.
//
//   offset 0   "GGUF"  u32 version  u64 tensor count  u64 metadata count
//   metadata   { string key, u32 type, value }            string: u64 length, bytes (no terminator)
//              an array value: u32 element type, u64 count, elements
//   tensors    { string name, u32 dimensions, u64 ne[dimensions], u32 type, u64 offset in the data section }
//   padding to general.alignment (32 when absent), then the data section, to the end of the file
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::model {

enum class ValueType : std::uint32_t {  // the values are GGUF's
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
const char* to_string(ValueType type);       // "uint32"
std::uint32_t scalar_bytes(ValueType type);  // 0 for strings and arrays

struct MetadataValue {
  std::string_view key;
  ValueType type = ValueType::kUint32;
  ValueType element = ValueType::kUint32;  // of an array
  std::uint64_t count = 1;                 // elements of an array, bytes of a string
  std::span<const std::byte> payload;      // the scalar, the string's bytes or the array's elements
  std::uint64_t offset = 0;                // of the value in its file, for messages
};

// Limits far above any real model. They bound the time and memory that a hostile file can take.
constexpr std::uint64_t kMaxMetadataEntries = 65'536;
constexpr std::uint64_t kMaxMetadataBytes = 128ULL << 20;
constexpr std::uint64_t kMaxArrayElements = 1ULL << 22;
constexpr std::uint64_t kMaxArrayDepth = 4;
constexpr std::uint64_t kMaxKeyBytes = 1'024;
constexpr std::uint64_t kMaxTensors = 131'072;
constexpr std::uint64_t kMaxTensorNameBytes = 255;
constexpr std::uint64_t kMaxAlignment = 1ULL << 20;

struct GgufPart {
  std::uint32_t version = 0;
  std::vector<MetadataValue> metadata;  // file order; keys are unique
  std::vector<TensorInfo> tensors;      // file order; names are unique, data does not overlap
  std::span<const std::byte> head;      // all that precedes the data section
};

// Views in the result point into `bytes`.
Result<GgufPart> parse_gguf(std::span<const std::byte> bytes, const std::string& name);

// Returns "Q4_K", "IQ2_XXS" or "number 77": also for types that Bulkhead can't compute with.
std::string tensor_type_name(std::uint32_t type);
// Returns the types that Bulkhead computes with, for messages: "F16, F32 and Q4_0".
std::string known_tensor_types();

// Calls f(element bytes) for each string of a string array's payload, which parse_gguf has checked.
template <typename F>
void for_each_string(const MetadataValue& array, F&& f) {
  const std::byte* at = array.payload.data();
  for (std::uint64_t i = 0; i < array.count; ++i) {
    std::uint64_t length = 0;
    __builtin_memcpy(&length, at, sizeof length);
    f(std::string_view(reinterpret_cast<const char*>(at + sizeof length), length));
    at += sizeof length + length;
  }
}

}  // namespace bulkhead::model
