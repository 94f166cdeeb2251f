// Reads GGUF v2 and v3 model files: metadata and where each tensor lies. The file is memory-mapped
// and hostile until proven otherwise: every count, length and offset is checked against the file
// before it is used, so a broken file gives an Error that names what and where (byte offset), in
// bounded time and memory, and never a crash.
//
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
// A GgufFile is immutable once open and may be read from many threads. Spans and string_views point
// into the mapping and live as long as the GgufFile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "gpu/kernels/tensor_types.hpp"

namespace bulkhead::model {

using gpu::kernels::TensorType;  // the values are GGUF's
using TensorTypeTraits = gpu::kernels::TensorRow;
// Null for a type that Bulkhead does not compute with.
const TensorTypeTraits* traits(TensorType type);

struct TensorInfo {
  std::string_view name;
  TensorType type = TensorType::kF32;
  std::uint32_t dimensions = 1;
  std::array<std::uint64_t, 4> ne{1, 1, 1,
                                  1};  // ne[0] is the row length (contiguous), GGUF's order
  std::span<const std::byte> data;     // ne[1]*ne[2]*ne[3] rows, each of whole blocks

  std::uint64_t rows() const { return ne[1] * ne[2] * ne[3]; }
  std::uint64_t elements() const { return ne[0] * rows(); }
  std::uint64_t row_bytes() const { return data.size() / (rows() == 0 ? 1 : rows()); }
};

// The files that GgufFile::open(path) reads: that one, all parts of a split model, or none
// ("builtin"). Goes by the name alone.
std::vector<std::string> model_files(const std::string& path);

class GgufFile {
 public:
  // Opens a file; "...-00001-of-0000N.gguf" opens all N parts as one model. The path "builtin" is
  // the embedded model.
  static Result<std::unique_ptr<GgufFile>> open(const std::string& path);
  // The same over bytes that outlive the GgufFile (the embedded model, tests). `name` is for
  // messages.
  static Result<std::unique_ptr<GgufFile>> from_memory(std::span<const std::byte> bytes,
                                                       std::string name);

  // The same files again, all parts in order, by descriptors that somebody kept: their names may be
  // gone. `path` is what open() was given. No descriptors: the embedded model.
  static Result<std::unique_ptr<GgufFile>> open(std::vector<UniqueFd> parts,
                                                const std::string& path);

  virtual ~GgufFile() = default;

  // Of the files, all parts in order; empty for the embedded model and others in memory. They stay
  // this object's.
  virtual std::vector<int> descriptors() const = 0;

  virtual const std::string& name() const = 0;
  virtual std::uint32_t version() const = 0;
  virtual std::uint64_t file_bytes() const = 0;
  // A checksum of what decides a model's tokens besides the weights that go to the device: of each part, all that
  // precedes the data section, and the tensors that the host reads (rope_*). Reads that much of the files.
  virtual std::uint64_t description_sum() const = 0;
  virtual std::span<const TensorInfo> tensors() const = 0;
  virtual const TensorInfo* find_tensor(std::string_view name) const = 0;
  // A hint that these whole pages of tensors' data are not needed for now: a mapped file lets go of
  // them (they stay in the system's page cache and come back when they are read again).
  virtual void forget(std::span<const std::byte> pages) const = 0;

  // Metadata. An absent key is nullopt; a key of another type is an error that names both types.
  // Integers of any width convert when their value fits; get_ints() takes bools as 0 and 1.
  virtual bool has(std::string_view key) const = 0;
  virtual Result<std::optional<std::uint64_t>> get_uint(std::string_view key) const = 0;
  virtual Result<std::optional<double>> get_float(std::string_view key) const = 0;
  virtual Result<std::optional<bool>> get_bool(std::string_view key) const = 0;
  virtual Result<std::optional<std::string_view>> get_string(std::string_view key) const = 0;
  virtual Result<std::optional<std::vector<std::string_view>>> get_strings(
      std::string_view key) const = 0;
  virtual Result<std::optional<std::vector<float>>> get_floats(std::string_view key) const = 0;
  virtual Result<std::optional<std::vector<std::int64_t>>> get_ints(std::string_view key) const = 0;

  // Elements of an array of any type; nullopt when the key is absent or no array.
  virtual std::optional<std::uint64_t> array_length(std::string_view key) const = 0;

  // For `bulkhead inspect`: every key in file order, its type's name and a short rendering of its
  // value.
  struct MetadataEntry {
    std::string_view key;
    std::string type;
    std::string value;
  };
  virtual std::vector<MetadataEntry> metadata() const = 0;
};

}  // namespace bulkhead::model
