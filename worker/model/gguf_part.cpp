#include "worker/model/gguf_part.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "worker/model/unicode.hpp"

namespace bulkhead::model {
namespace {

static_assert(std::endian::native == std::endian::little,
              "GGUF is little-endian; so must the host be");

constexpr char kDamaged[] = "; the file is damaged or incomplete: fetch or convert it again";

// Makes text of a hostile file fit for a terminal: shortens it, and escapes all but printable ASCII.
std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else {
      static constexpr char kHex[] = "0123456789abcdef";
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out + (text.size() > kShown ? "...\"" : "\"");
}

// How files begin that people give in place of a GGUF file, and what to do with them.
struct OtherFile {
  std::string_view begins, what;
};
constexpr char kOlderFormat[] = "an older format of the same family; convert it to GGUF v3";
constexpr char kWebPage[] = "a web page: the address of the download was not that of the file";
constexpr char kCompressed[] = "a compressed file; unpack it";
constexpr OtherFile kOtherFiles[] = {
    {"lmgg", kOlderFormat},
    {"tjgg", kOlderFormat},
    {"fmgg", kOlderFormat},
    {"algg", kOlderFormat},
    {"version https://git-lfs", "a pointer of Git LFS to the file; fetch the file (git lfs pull)"},
    {"<!DOCTYPE", kWebPage},
    {"<!doctype", kWebPage},
    {"<html", kWebPage},
    {"PK\x03\x04",
     "a zip archive, as PyTorch's files are; convert the model to GGUF, or unpack an archive of "
     "it"},
    {"\x1f\x8b", kCompressed},
    {"\xfd"
     "7zXZ",
     kCompressed},
    {"\x28\xb5\x2f\xfd", kCompressed},
};

// Says what a file is that does not begin with "GGUF".
std::string_view what_else(std::string_view bytes) {
  for (const OtherFile& other : kOtherFiles)
    if (bytes.starts_with(other.begins)) return other.what;
  // A safetensors file begins with the size of its JSON header, 8 bytes, and the header.
  constexpr std::size_t kHeader = 8;
  if (bytes.size() > kHeader && bytes[kHeader] == '{' &&
      bytes.substr(4, 4) == std::string_view("\0\0\0\0", 4))
    return "a safetensors file; convert its folder to GGUF (llama.cpp's convert_hf_to_gguf.py)";
  return "not a GGUF model file";
}

// Walks through the file. It reads nothing before it has checked that it is there, and its position only grows.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return bytes_.size() - position_; }

  Error corrupt(const std::string& what, std::uint64_t offset) const {
    return Error(ErrorCode::kCorrupt,
                 name_ + ": " + what + " at byte " + std::to_string(offset) + kDamaged);
  }
  Error truncated(const std::string& what) const {
    return Error(ErrorCode::kCorrupt, name_ + ": ends at byte " + std::to_string(bytes_.size()) +
                                          ", inside " + what + " that starts at byte " +
                                          std::to_string(position_) + kDamaged);
  }

  template <typename T>
  Result<T> number(const char* what) {
    if (remaining() < sizeof(T)) return truncated(what);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  Result<std::span<const std::byte>> take(std::uint64_t size, const std::string& what) {
    if (size > remaining()) return truncated(what);
    const auto span = bytes_.subspan(position_, size);
    position_ += size;
    return span;
  }

  Result<std::string_view> string(const char* what, std::uint64_t limit) {
    const std::uint64_t start = position_;
    BULKHEAD_TRY(const auto length, number<std::uint64_t>(what));
    if (length > remaining() || length > limit) {
      position_ = start;
      return corrupt(std::string(what) + " claims " + std::to_string(length) + " bytes" +
                         (length > limit ? ", more than the limit of " + std::to_string(limit) + ","
                                         : ", more than the file has,"),
                     start);
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + position_), length);
    position_ += length;
    return text;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& name_;
  std::uint64_t position_ = 0;
};

bool known(std::uint32_t type) {
  return type <= static_cast<std::uint32_t>(ValueType::kFloat64);
}

// The fewest bytes that one element of a type takes in a file.
std::uint64_t least_bytes(ValueType type) {
  if (type == ValueType::kString) return 8;
  if (type == ValueType::kArray) return 12;
  return scalar_bytes(type);
}

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& name)
      : bytes_(bytes), name_(name), cursor_(bytes, name) {}

  Result<GgufPart> parse() {
    BULKHEAD_RETURN_IF_ERROR(header());
    BULKHEAD_RETURN_IF_ERROR(metadata());
    BULKHEAD_RETURN_IF_ERROR(find_alignment());
    BULKHEAD_RETURN_IF_ERROR(tensor_table());
    BULKHEAD_RETURN_IF_ERROR(tensor_names_unique());
    BULKHEAD_RETURN_IF_ERROR(place_data());
    return std::move(part_);
  }

 private:
  struct Placement {
    std::uint64_t offset;  // in the data section
    std::uint64_t size;
    std::uint64_t entry;  // where the table of tensors says so
  };

  Status header() {
    if (bytes_.size() < 4)
      return Error(ErrorCode::kCorrupt, name_ + ": has " + std::to_string(bytes_.size()) +
                                            " bytes, too few for a GGUF file" + kDamaged);
    const std::string_view all(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
    if (!all.starts_with("GGUF")) {
      return Error(ErrorCode::kCorrupt,
                   name_ + ": starts with " + quoted(all.substr(0, 4)) +
                       " at byte 0, not with \"GGUF\": " + std::string(what_else(all)));
    }
    BULKHEAD_RETURN_IF_ERROR(cursor_.take(4, "the magic number"));
    BULKHEAD_TRY(part_.version, cursor_.number<std::uint32_t>("the version"));
    if (part_.version != 2 && part_.version != 3) {
      const bool swapped = part_.version != 0 && (part_.version & 0xFFFF) == 0;
      return Error(ErrorCode::kUnsupported,
                   name_ + ": " +
                       (swapped ? std::string("is a big-endian GGUF file")
                                : "has GGUF version " + std::to_string(part_.version)) +
                       " (byte 4); versions 2 and 3, little-endian, can be read: convert it again");
    }
    BULKHEAD_TRY(tensor_count_, cursor_.number<std::uint64_t>("the number of tensors"));
    BULKHEAD_TRY(metadata_count_, cursor_.number<std::uint64_t>("the number of metadata keys"));
    // name length + dimensions + one ne + type + offset; key length + type + one byte
    constexpr std::uint64_t kLeastTensor = 8 + 4 + 8 + 4 + 8;
    constexpr std::uint64_t kLeastEntry = 8 + 4 + 1;
    if (tensor_count_ > kMaxTensors || tensor_count_ > cursor_.remaining() / kLeastTensor)
      return cursor_.corrupt(count_claim(tensor_count_, "tensors"), 8);
    if (metadata_count_ > kMaxMetadataEntries ||
        metadata_count_ > cursor_.remaining() / kLeastEntry)
      return cursor_.corrupt(count_claim(metadata_count_, "metadata keys"), 16);
    return {};
  }

  static std::string count_claim(std::uint64_t count, const char* things) {
    return "claims " + std::to_string(count) + " " + things + ", more than the file has room for,";
  }

  Status metadata() {
    part_.metadata.reserve(metadata_count_);
    for (std::uint64_t i = 0; i < metadata_count_; ++i) {
      const std::uint64_t start = cursor_.position();
      BULKHEAD_TRY(const auto key, cursor_.string("a metadata key", kMaxKeyBytes));
      if (key.empty() ||
          !std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7F; }))
        return cursor_.corrupt("metadata key " + quoted(key) + " is not printable ASCII", start);
      BULKHEAD_TRY(const auto type, cursor_.number<std::uint32_t>("the type of a metadata value"));
      if (!known(type))
        return cursor_.corrupt(
            "metadata key " + quoted(key) + " has the unknown type " + std::to_string(type),
            cursor_.position() - 4);
      BULKHEAD_TRY(auto value, read_value(static_cast<ValueType>(type), key));
      value.key = key;
      part_.metadata.push_back(value);
      if (cursor_.position() > kMaxMetadataBytes)
        return Error(ErrorCode::kUnsupported,
                     name_ + ": more than " + std::to_string(kMaxMetadataBytes >> 20) +
                         " MiB of metadata (key " + quoted(key) + " ends at byte " +
                         std::to_string(cursor_.position()) + "); no known model has so much");
    }
    std::vector<std::uint32_t> order(part_.metadata.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
      return part_.metadata[a].key < part_.metadata[b].key;
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
      const auto& a = part_.metadata[order[i - 1]];
      const auto& b = part_.metadata[order[i]];
      if (a.key == b.key)
        return cursor_.corrupt("metadata key " + quoted(a.key) + " appears twice",
                               std::max(a.offset, b.offset));
    }
    return {};
  }

  Result<MetadataValue> read_value(ValueType type, std::string_view key) {
    MetadataValue value;
    value.type = type;
    value.offset = cursor_.position();
    if (type == ValueType::kString) {
      BULKHEAD_TRY(const auto text, cursor_.string("a metadata string", kMaxMetadataBytes));
      value.count = text.size();
      value.payload = std::as_bytes(std::span(text.data(), text.size()));
    } else if (type == ValueType::kArray) {
      BULKHEAD_RETURN_IF_ERROR(read_array(value, key, 1));
    } else {
      BULKHEAD_TRY(value.payload, cursor_.take(scalar_bytes(type), "a metadata value"));
      if (type == ValueType::kBool && static_cast<unsigned>(value.payload[0]) > 1)
        return cursor_.corrupt("metadata key " + quoted(key) + " is a bool that is neither 0 nor 1",
                               value.offset);
    }
    return value;
  }

  Status read_array(MetadataValue& value, std::string_view key, std::uint64_t depth) {
    const std::uint64_t start = cursor_.position();
    BULKHEAD_TRY(const auto element, cursor_.number<std::uint32_t>("the element type of an array"));
    BULKHEAD_TRY(value.count, cursor_.number<std::uint64_t>("the length of an array"));
    const std::string array = "the array of metadata key " + quoted(key);
    if (!known(element))
      return cursor_.corrupt(array + " has the unknown element type " + std::to_string(element),
                             start);
    value.element = static_cast<ValueType>(element);
    if (value.count > kMaxArrayElements ||
        value.count > cursor_.remaining() / least_bytes(value.element))
      return cursor_.corrupt(array + " claims " + std::to_string(value.count) +
                                 " elements, more than the file has room for,",
                             start + 4);
    const std::uint64_t first = cursor_.position();
    if (value.element == ValueType::kString) {
      for (std::uint64_t i = 0; i < value.count; ++i) {
        BULKHEAD_RETURN_IF_ERROR(cursor_.string("a string in a metadata array", kMaxMetadataBytes));
      }
    } else if (value.element == ValueType::kArray) {
      if (depth == kMaxArrayDepth)
        return cursor_.corrupt(array + " is nested deeper than " + std::to_string(kMaxArrayDepth),
                               start);
      for (std::uint64_t i = 0; i < value.count; ++i) {
        MetadataValue inner;
        BULKHEAD_RETURN_IF_ERROR(read_array(inner, key, depth + 1));
      }
    } else {
      BULKHEAD_TRY(const auto elements,
                   cursor_.take(value.count * scalar_bytes(value.element), "a metadata array"));
      if (value.element == ValueType::kBool) {
        const auto* bad = std::find_if(elements.data(), elements.data() + elements.size(),
                                       [](std::byte b) { return static_cast<unsigned>(b) > 1; });
        if (bad != elements.data() + elements.size())
          return cursor_.corrupt(array + " has a bool that is neither 0 nor 1",
                                 first + static_cast<std::uint64_t>(bad - elements.data()));
      }
    }
    value.payload = bytes_.subspan(first, cursor_.position() - first);
    return {};
  }

  Status find_alignment() {
    for (const MetadataValue& value : part_.metadata) {
      if (value.key != "general.alignment") continue;
      if (value.type != ValueType::kUint32)
        return cursor_.corrupt(
            std::string("general.alignment is of type ") + to_string(value.type) + ", not uint32",
            value.offset);
      std::uint32_t alignment = 0;
      std::memcpy(&alignment, value.payload.data(), sizeof alignment);
      if (!std::has_single_bit(alignment) || alignment < 8 || alignment > kMaxAlignment)
        return cursor_.corrupt("general.alignment is " + std::to_string(alignment) +
                                   ", not a power of two from 8 to " +
                                   std::to_string(kMaxAlignment),
                               value.offset);
      alignment_ = alignment;
    }
    return {};
  }

  Status tensor_table() {
    part_.tensors.reserve(tensor_count_);
    placements_.reserve(tensor_count_);
    for (std::uint64_t i = 0; i < tensor_count_; ++i) {
      const std::uint64_t start = cursor_.position();
      TensorInfo tensor;
      BULKHEAD_TRY(tensor.name, cursor_.string("a tensor name", kMaxTensorNameBytes));
      if (tensor.name.empty() || !valid_utf8(tensor.name) ||
          std::any_of(tensor.name.begin(), tensor.name.end(),
                      [](char c) { return static_cast<unsigned char>(c) <= 0x20 || c == 0x7F; }))
        return cursor_.corrupt("tensor name " + quoted(tensor.name) + " is not printable UTF-8",
                               start);
      const std::string named = "tensor " + quoted(tensor.name);

      BULKHEAD_TRY(tensor.dimensions, cursor_.number<std::uint32_t>("a tensor's dimensions"));
      if (tensor.dimensions < 1 || tensor.dimensions > 4)
        return cursor_.corrupt(
            named + " has " + std::to_string(tensor.dimensions) + " dimensions, not 1 to 4,",
            cursor_.position() - 4);
      std::uint64_t elements = 1;
      for (std::uint32_t d = 0; d < tensor.dimensions; ++d) {
        BULKHEAD_TRY(tensor.ne[d], cursor_.number<std::uint64_t>("a tensor's shape"));
        // With at most 2^60 elements, the size in bytes fits 64 bits: no type takes more than 4 bytes a weight.
        constexpr std::uint64_t kMaxElements = 1ULL << 60;
        if (tensor.ne[d] == 0 || tensor.ne[d] > kMaxElements / elements)
          return cursor_.corrupt(named + " has the impossible length " +
                                     std::to_string(tensor.ne[d]) + " in dimension " +
                                     std::to_string(d),
                                 cursor_.position() - 8);
        elements *= tensor.ne[d];
      }
      BULKHEAD_TRY(const auto type, cursor_.number<std::uint32_t>("a tensor's type"));
      tensor.type = static_cast<TensorType>(type);
      const TensorTypeTraits* block = traits(tensor.type);
      if (block == nullptr)
        return Error(ErrorCode::kUnsupported,
                     name_ + ": " + named + " is of type " + tensor_type_name(type) + " (byte " +
                         std::to_string(cursor_.position() - 4) + "); Bulkhead computes with " +
                         known_tensor_types() + ": use a file quantised to one of these");
      if (tensor.ne[0] % block->block_weights != 0)
        return cursor_.corrupt(named + " has rows of " + std::to_string(tensor.ne[0]) +
                                   " weights, not a multiple of " + block->name + "'s block of " +
                                   std::to_string(block->block_weights) + ",",
                               start);
      const std::uint64_t offset_at = cursor_.position();
      BULKHEAD_TRY(const auto offset, cursor_.number<std::uint64_t>("a tensor's offset"));
      if (offset % alignment_ != 0)
        return cursor_.corrupt(named + " has the offset " + std::to_string(offset) +
                                   ", not a multiple of the alignment " +
                                   std::to_string(alignment_) + ",",
                               offset_at);
      part_.tensors.push_back(tensor);
      placements_.push_back(
          {offset, elements / block->block_weights * block->block_bytes, offset_at});
    }
    return {};
  }

  Status tensor_names_unique() {
    std::vector<std::uint32_t> order(part_.tensors.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
      return part_.tensors[a].name < part_.tensors[b].name;
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (part_.tensors[order[i - 1]].name == part_.tensors[order[i]].name)
        return cursor_.corrupt("tensor " + quoted(part_.tensors[order[i]].name) + " appears twice",
                               placements_[std::max(order[i - 1], order[i])].entry);
    }
    return {};
  }

  Status place_data() {
    part_.head = bytes_.first(cursor_.position());
    if (part_.tensors.empty()) return {};
    const std::uint64_t begin = (cursor_.position() + alignment_ - 1) / alignment_ * alignment_;
    const std::uint64_t size = begin < bytes_.size() ? bytes_.size() - begin : 0;
    std::vector<std::uint32_t> order(part_.tensors.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
      return placements_[a].offset < placements_[b].offset;
    });
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Placement& place = placements_[order[i]];
      TensorInfo& tensor = part_.tensors[order[i]];
      if (place.offset > size || place.size > size - place.offset)
        return cursor_.corrupt(
            "tensor " + quoted(tensor.name) + " of " + std::to_string(place.size) +
                " bytes at data offset " + std::to_string(place.offset) +
                " reaches past the end of the file (data starts at byte " + std::to_string(begin) +
                ", the file has " + std::to_string(bytes_.size()) + " bytes), as given",
            place.entry);
      if (i > 0) {
        const Placement& before = placements_[order[i - 1]];
        if (place.offset - before.offset < before.size)
          return cursor_.corrupt("tensor " + quoted(tensor.name) + " overlaps tensor " +
                                     quoted(part_.tensors[order[i - 1]].name) + ", as given",
                                 place.entry);
      }
      tensor.data = bytes_.subspan(begin + place.offset, place.size);
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  const std::string& name_;
  Cursor cursor_;
  GgufPart part_;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t metadata_count_ = 0;
  std::uint64_t alignment_ = 32;
  std::vector<Placement> placements_;  // in the order of part_.tensors
};

}  // namespace

const char* to_string(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
      return "uint8";
    case ValueType::kInt8:
      return "int8";
    case ValueType::kUint16:
      return "uint16";
    case ValueType::kInt16:
      return "int16";
    case ValueType::kUint32:
      return "uint32";
    case ValueType::kInt32:
      return "int32";
    case ValueType::kFloat32:
      return "float32";
    case ValueType::kBool:
      return "bool";
    case ValueType::kString:
      return "string";
    case ValueType::kArray:
      return "array";
    case ValueType::kUint64:
      return "uint64";
    case ValueType::kInt64:
      return "int64";
    case ValueType::kFloat64:
      return "float64";
  }
  return "unknown";
}

std::uint32_t scalar_bytes(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool:
      return 1;
    case ValueType::kUint16:
    case ValueType::kInt16:
      return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32:
      return 4;
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64:
      return 8;
    case ValueType::kString:
    case ValueType::kArray:
      return 0;
  }
  return 0;
}

Result<GgufPart> parse_gguf(std::span<const std::byte> bytes, const std::string& name) {
  return Parser(bytes, name).parse();
}

}  // namespace bulkhead::model
