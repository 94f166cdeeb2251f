#include "worker/model/gguf.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <variant>

#include "config/base/fnv1a.hpp"
#include "worker/model/builtin_model.hpp"
#include "worker/model/gguf_part.hpp"
#include "worker/model/gguf_value.hpp"
#include "worker/model/mapped_file.hpp"

namespace bulkhead::model {
namespace {

class Gguf final : public GgufFile {
 public:
  struct Source {
    std::optional<MappedFile> mapping;  // none if the caller owns the bytes
    GgufPart part;
    std::uint64_t bytes = 0;
  };

  Gguf(std::string name, std::vector<Source> sources)
      : name_(std::move(name)), sources_(std::move(sources)) {
    for (const Source& source : sources_) {
      bytes_ += source.bytes;
      tensors_.insert(tensors_.end(), source.part.tensors.begin(), source.part.tensors.end());
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      by_name_.emplace(tensors_[i].name, i);
    for (const MetadataValue& value : first().metadata)
      by_key_.emplace(value.key, &value);
  }

  bool tensor_names_unique() const { return by_name_.size() == tensors_.size(); }

  const std::string& name() const override { return name_; }
  std::uint32_t version() const override { return first().version; }
  std::uint64_t file_bytes() const override { return bytes_; }
  std::uint64_t description_sum() const override {
    std::uint64_t sum = kFnv1aStart;
    const auto add = [&sum](std::span<const std::byte> bytes) {
      // The long words do not cover up to seven bytes at the end.
      const std::uint64_t long_words = fnv1a_long_words(bytes);
      sum = fnv1a(std::as_bytes(std::span(&long_words, 1)), sum);
      sum = fnv1a(bytes.last(bytes.size() % 8), sum);
    };
    for (const Source& source : sources_)
      add(source.part.head);
    for (const TensorInfo& tensor : tensors_) {
      if (tensor.name.starts_with("rope_") || tensor.name.starts_with("cls.")) add(tensor.data);
    }
    return sum;
  }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  const TensorInfo* find_tensor(std::string_view name) const override {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
  }

  std::vector<int> descriptors() const override {
    std::vector<int> all;
    for (const Source& source : sources_) {
      if (source.mapping) all.push_back(source.mapping->descriptor());
    }
    return all;
  }

  void forget(std::span<const std::byte> pages) const override {
    for (const Source& source : sources_) {
      if (!source.mapping) continue;
      const auto mapped = source.mapping->bytes();
      if (pages.data() >= mapped.data() &&
          pages.data() + pages.size() <= mapped.data() + mapped.size())
        source.mapping->forget(pages);
    }
  }

  bool has(std::string_view key) const override { return by_key_.contains(key); }

  Result<std::optional<std::uint64_t>> get_uint(std::string_view key) const override {
    const MetadataValue* value = find(key);
    if (value == nullptr) return std::optional<std::uint64_t>();
    const Number number = number_at(value->type, value->payload.data());
    if (const auto* u = std::get_if<std::uint64_t>(&number)) return std::optional(*u);
    if (const auto* i = std::get_if<std::int64_t>(&number)) {
      if (*i >= 0) return std::optional(static_cast<std::uint64_t>(*i));
      return Error(ErrorCode::kCorrupt, at(*value) + " is " + std::to_string(*i) +
                                            ", where a number from 0 up is needed" + kAdvice);
    }
    return wrong_type(*value, "an unsigned integer");
  }

  Result<std::optional<double>> get_float(std::string_view key) const override {
    const MetadataValue* value = find(key);
    if (value == nullptr) return std::optional<double>();
    const Number number = number_at(value->type, value->payload.data());
    if (const auto* d = std::get_if<double>(&number)) return std::optional(*d);
    if (const auto* u = std::get_if<std::uint64_t>(&number))
      return std::optional(static_cast<double>(*u));
    if (const auto* i = std::get_if<std::int64_t>(&number))
      return std::optional(static_cast<double>(*i));
    return wrong_type(*value, "a number");
  }

  Result<std::optional<bool>> get_bool(std::string_view key) const override {
    const MetadataValue* value = find(key);
    if (value == nullptr) return std::optional<bool>();
    if (value->type != ValueType::kBool) return wrong_type(*value, "a bool");
    return std::optional(value->payload[0] != std::byte{0});
  }

  Result<std::optional<std::string_view>> get_string(std::string_view key) const override {
    const MetadataValue* value = find(key);
    if (value == nullptr) return std::optional<std::string_view>();
    if (value->type != ValueType::kString) return wrong_type(*value, "a string");
    return std::optional(std::string_view(reinterpret_cast<const char*>(value->payload.data()),
                                          value->payload.size()));
  }

  Result<std::optional<std::vector<std::string_view>>> get_strings(
      std::string_view key) const override {
    const MetadataValue* value = find(key);
    if (value == nullptr) return std::optional<std::vector<std::string_view>>();
    if (value->type != ValueType::kArray || value->element != ValueType::kString)
      return wrong_type(*value, "an array of strings");
    std::vector<std::string_view> strings;
    strings.reserve(value->count);
    for_each_string(*value, [&strings](std::string_view text) { strings.push_back(text); });
    return std::optional(std::move(strings));
  }

  Result<std::optional<std::vector<float>>> get_floats(std::string_view key) const override {
    const MetadataValue* value = find(key);
    if (value == nullptr) return std::optional<std::vector<float>>();
    std::vector<float> floats;
    if (!each_number(*value, [&floats](const Number& number) {
          return std::visit(
              [&floats]<typename T>(T n) {
                if constexpr (std::is_same_v<T, std::monostate>) {
                  return false;
                } else {
                  floats.push_back(static_cast<float>(n));
                  return true;
                }
              },
              number);
        }))
      return wrong_type(*value, "an array of numbers");
    return std::optional(std::move(floats));
  }

  Result<std::optional<std::vector<std::int64_t>>> get_ints(std::string_view key) const override {
    const MetadataValue* value = find(key);
    if (value == nullptr) return std::optional<std::vector<std::int64_t>>();
    std::vector<std::int64_t> ints;
    if (value->type == ValueType::kArray && value->element == ValueType::kBool) {
      for (const std::byte each : value->payload)
        ints.push_back(each != std::byte{0} ? 1 : 0);
      return std::optional(std::move(ints));
    }
    if (!each_number(*value, [&ints](const Number& number) {
          const auto* i = std::get_if<std::int64_t>(&number);
          const auto* u = std::get_if<std::uint64_t>(&number);
          if (u != nullptr && *u > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
            return false;
          if (i == nullptr && u == nullptr) return false;
          ints.push_back(i != nullptr ? *i : static_cast<std::int64_t>(*u));
          return true;
        }))
      return wrong_type(*value, "an array of integers that fit in 64 bits");
    return std::optional(std::move(ints));
  }

  std::optional<std::uint64_t> array_length(std::string_view key) const override {
    const MetadataValue* value = find(key);
    if (value == nullptr || value->type != ValueType::kArray) return std::nullopt;
    return value->count;
  }

  std::vector<MetadataEntry> metadata() const override {
    std::vector<MetadataEntry> entries;
    entries.reserve(first().metadata.size());
    for (const MetadataValue& value : first().metadata) {
      entries.push_back({value.key, type_text(value), value_text(value)});
    }
    return entries;
  }

 private:
  static constexpr char kAdvice[] = "; the file was not made for this program, or is damaged";

  const GgufPart& first() const { return sources_.front().part; }

  const MetadataValue* find(std::string_view key) const {
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : found->second;
  }

  std::string at(const MetadataValue& value) const {
    return name_ + ": metadata key " + std::string(value.key) + " (byte " +
           std::to_string(value.offset) + ")";
  }

  Error wrong_type(const MetadataValue& value, const char* wanted) const {
    return Error(ErrorCode::kCorrupt, at(value) + " is of type " + type_text(value) + ", where " +
                                          wanted + " is needed" + kAdvice);
  }

  template <typename F>
  static bool each_number(const MetadataValue& value, F&& take) {
    if (value.type != ValueType::kArray || scalar_bytes(value.element) == 0) return false;
    const std::uint32_t size = scalar_bytes(value.element);
    for (std::uint64_t i = 0; i < value.count; ++i) {
      if (!take(number_at(value.element, value.payload.data() + i * size))) return false;
    }
    return true;
  }

  std::string name_;
  std::vector<Source> sources_;  // never empty and never changed, because the maps point into it
  std::uint64_t bytes_ = 0;
  std::vector<TensorInfo> tensors_;
  std::map<std::string_view, std::size_t> by_name_;
  std::map<std::string_view, const MetadataValue*> by_key_;
};

// A file name such as "dir/model-00002-of-00005.gguf".
struct SplitName {
  std::string prefix;
  std::uint64_t number = 0;
  std::uint64_t count = 0;

  static std::optional<SplitName> parse(const std::string& path) {
    constexpr std::string_view kShape = "-00000-of-00000.gguf";
    if (path.size() < kShape.size()) return std::nullopt;
    const std::string_view tail = std::string_view(path).substr(path.size() - kShape.size());
    for (std::size_t i = 0; i < kShape.size(); ++i) {
      const bool digit = tail[i] >= '0' && tail[i] <= '9';
      if (kShape[i] == '0' ? !digit : tail[i] != kShape[i]) return std::nullopt;
    }
    SplitName name;
    name.prefix = path.substr(0, path.size() - kShape.size());
    std::from_chars(tail.data() + 1, tail.data() + 6, name.number);
    std::from_chars(tail.data() + 10, tail.data() + 15, name.count);
    return name;
  }

  std::string part(std::uint64_t number_of_part) const {
    const auto five = [](std::uint64_t n) {
      const std::string digits = std::to_string(n);
      return std::string(5 - std::min<std::size_t>(5, digits.size()), '0') + digits;
    };
    return prefix + "-" + five(number_of_part) + "-of-" + five(count) + ".gguf";
  }
};

// Opens the n-th part, whose path it is given.
using OpenPart = std::function<Result<MappedFile>(std::size_t part, const std::string& path)>;

Result<Gguf::Source> open_source(const OpenPart& open, std::size_t number,
                                 const std::string& path) {
  BULKHEAD_TRY(auto mapping, open(number, path));
  Gguf::Source source;
  source.bytes = mapping.bytes().size();
  BULKHEAD_TRY(source.part, parse_gguf(mapping.bytes(), path));
  source.mapping = std::move(mapping);
  return source;
}

// Returns an unsigned integer of a part's metadata; nothing if it is absent or has another type.
std::optional<std::uint64_t> uint_in(const GgufPart& part, std::string_view key) {
  for (const MetadataValue& value : part.metadata) {
    if (value.key != key) continue;
    const Number number = number_at(value.type, value.payload.data());
    if (const auto* u = std::get_if<std::uint64_t>(&number)) return *u;
    const auto* i = std::get_if<std::int64_t>(&number);
    if (i != nullptr && *i >= 0) return static_cast<std::uint64_t>(*i);
  }
  return std::nullopt;
}

constexpr std::uint64_t kMaxSplitParts = 1'024;

Result<std::vector<Gguf::Source>> open_all_parts(const OpenPart& open, const std::string& path,
                                                 Gguf::Source first, std::uint64_t count) {
  const auto name = SplitName::parse(path);
  const std::string what =
      path + ": holds one part of a model split in " + std::to_string(count) + " files";
  if (count > kMaxSplitParts)
    return Error(ErrorCode::kCorrupt, what + ", more than " + std::to_string(kMaxSplitParts) +
                                          "; the file is damaged: fetch it again");
  if (!name || name->count != count)
    return Error(ErrorCode::kInvalidArgument,
                 what + ", but is not named like it; name the files ...-00001-of-" +
                     SplitName{"", 0, count}.part(0).substr(10));
  if (name->number != 1)
    return Error(ErrorCode::kInvalidArgument, what + "; give the first part, " + name->part(1));

  std::vector<Gguf::Source> sources;
  sources.push_back(std::move(first));
  std::uint64_t tensors = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i > 0) {
      auto part = open_source(open, i, name->part(i + 1));
      if (!part.ok() && part.error().code() == ErrorCode::kNotFound)
        return Error(ErrorCode::kNotFound, what + ", and part " + std::to_string(i + 1) +
                                               " is missing: " + name->part(i + 1) +
                                               "; fetch it into the same folder");
      if (!part.ok()) return part.error().within("part " + std::to_string(i + 1));
      sources.push_back(*std::move(part));
    }
    const GgufPart& part = sources.back().part;
    if (uint_in(part, "split.no") != i || uint_in(part, "split.count") != count)
      return Error(ErrorCode::kCorrupt,
                   name->part(i + 1) + ": split.no and split.count don't say part " +
                       std::to_string(i) + " (from 0) of " + std::to_string(count) +
                       "; the parts are of different models: fetch them again");
    tensors += part.tensors.size();
  }
  const auto expected = uint_in(sources.front().part, "split.tensors.count");
  if (expected && *expected != tensors)
    return Error(ErrorCode::kCorrupt, path + ": split.tensors.count says " +
                                          std::to_string(*expected) + " tensors, the parts hold " +
                                          std::to_string(tensors) + "; fetch all parts again");
  return sources;
}

Result<std::unique_ptr<GgufFile>> assemble(std::string name, std::vector<Gguf::Source> sources) {
  auto file = std::make_unique<Gguf>(std::move(name), std::move(sources));
  if (!file->tensor_names_unique())
    return Error(ErrorCode::kCorrupt, file->name() +
                                          ": a tensor appears in more than one part; "
                                          "fetch all parts again");
  return std::unique_ptr<GgufFile>(std::move(file));
}

Result<std::unique_ptr<GgufFile>> open_parts(const OpenPart& open, const std::string& path) {
  BULKHEAD_TRY(auto first, open_source(open, 0, path));
  const std::uint64_t count = uint_in(first.part, "split.count").value_or(1);
  std::vector<Gguf::Source> sources;
  if (count > 1) {
    BULKHEAD_TRY(sources, open_all_parts(open, path, std::move(first), count));
  } else {
    sources.push_back(std::move(first));
  }
  return assemble(path, std::move(sources));
}

}  // namespace

std::vector<std::string> model_files(const std::string& path) {
  if (path == "builtin") return {};
  const auto name = SplitName::parse(path);
  if (!name || name->number != 1 || name->count > kMaxSplitParts) return {path};
  std::vector<std::string> files;
  for (std::uint64_t part = 1; part <= name->count; ++part)
    files.push_back(name->part(part));
  return files;
}

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  if (path == "builtin") {
    if (builtin_model().empty())
      return Error(ErrorCode::kNotFound,
                   "builtin: this program was built without a built-in model; name a GGUF file");
    return from_memory(builtin_model(), "builtin");
  }
  return open_parts([](std::size_t, const std::string& part) { return MappedFile::open(part); },
                    path);
}

Result<std::unique_ptr<GgufFile>> GgufFile::open(std::vector<UniqueFd> parts,
                                                 const std::string& path) {
  if (parts.empty()) return open("builtin");
  std::size_t opened = 0;
  const auto take = [&](std::size_t part, const std::string& name) -> Result<MappedFile> {
    if (part >= parts.size())
      return Error(ErrorCode::kCorrupt,
                   name + ": the predecessor did not keep this part of the model");
    ++opened;
    return MappedFile::open(std::move(parts[part]), name);
  };
  BULKHEAD_TRY(auto file, open_parts(take, path));
  if (opened != parts.size())
    return Error(ErrorCode::kCorrupt, path + ": more files were kept than the model has parts");
  return file;
}

Result<std::unique_ptr<GgufFile>> GgufFile::from_memory(std::span<const std::byte> bytes,
                                                        std::string name) {
  Gguf::Source source;
  source.bytes = bytes.size();
  BULKHEAD_TRY(source.part, parse_gguf(bytes, name));
  if (uint_in(source.part, "split.count").value_or(1) > 1)
    return Error(ErrorCode::kUnsupported, name + ": is one part of a split model; open it by path");
  std::vector<Gguf::Source> sources;
  sources.push_back(std::move(source));
  return assemble(std::move(name), std::move(sources));
}

}  // namespace bulkhead::model
