// Reads GGUF v2 and v3 model files: the metadata and the place of each tensor. The file is memory-mapped and counts
// as hostile: every count, length and offset is checked against the file before it is used. A broken file gives an
// Error that names what is wrong and where (byte offset), in bounded time and memory, and never causes a crash.
//
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
// A GgufFile is immutable once open, and many threads may read it. Spans and string_views point into the mapping and
// live as long as the GgufFile.
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
// Returns null for a type that Bulkhead can't compute with.
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

// Returns the files that GgufFile::open(path) reads: that file, all parts of a split model, or none ("builtin").
// Decides by the name alone.
std::vector<std::string> model_files(const std::string& path);

class GgufFile {
 public:
  // Opens a file. "...-00001-of-0000N.gguf" opens all N parts as one model. The path "builtin" opens the embedded
  // model.
  static Result<std::unique_ptr<GgufFile>> open(const std::string& path);
  // The same for bytes that outlive the GgufFile (the embedded model, tests). `name` is for messages.
  static Result<std::unique_ptr<GgufFile>> from_memory(std::span<const std::byte> bytes,
                                                       std::string name);

  // Opens the same files again, all parts in order, by descriptors that were kept; their names may be gone. `path` is
  // what open() was given. No descriptors: the embedded model.
  static Result<std::unique_ptr<GgufFile>> open(std::vector<UniqueFd> parts,
                                                const std::string& path);

  virtual ~GgufFile() = default;

  // Returns the files' descriptors, all parts in order; empty for the embedded model and others in memory. This
  // object keeps them.
  virtual std::vector<int> descriptors() const = 0;

  virtual const std::string& name() const = 0;
  virtual std::uint32_t version() const = 0;
  virtual std::uint64_t file_bytes() const = 0;
  // Returns a checksum of everything that determines a model's tokens besides the weights that go to the device: for
  // each part, all that precedes the data section, and the tensors that the host reads (rope_*, cls.*). It reads that
  // much of the files.
  virtual std::uint64_t description_sum() const = 0;
  virtual std::span<const TensorInfo> tensors() const = 0;
  virtual const TensorInfo* find_tensor(std::string_view name) const = 0;
  // A hint that these whole pages of tensors' data are not needed for now: a mapped file releases them (they stay in
  // the system's page cache and come back when they are read again).
  virtual void forget(std::span<const std::byte> pages) const = 0;

  // Metadata. An absent key gives nullopt; a key of another type gives an error that names both types. Integers of
  // any width convert if their value fits; get_ints() takes bools as 0 and 1.
  virtual bool has(std::string_view key) const = 0;
  virtual Result<std::optional<std::uint64_t>> get_uint(std::string_view key) const = 0;
  virtual Result<std::optional<double>> get_float(std::string_view key) const = 0;
  virtual Result<std::optional<bool>> get_bool(std::string_view key) const = 0;
  virtual Result<std::optional<std::string_view>> get_string(std::string_view key) const = 0;
  virtual Result<std::optional<std::vector<std::string_view>>> get_strings(
      std::string_view key) const = 0;
  virtual Result<std::optional<std::vector<float>>> get_floats(std::string_view key) const = 0;
  virtual Result<std::optional<std::vector<std::int64_t>>> get_ints(std::string_view key) const = 0;

  // Returns the length of an array of any element type; nullopt if the key is absent or no array.
  virtual std::optional<std::uint64_t> array_length(std::string_view key) const = 0;

  // For `bulkhead inspect`: every key in file order, the name of its type and a short form of its value.
  struct MetadataEntry {
    std::string_view key;
    std::string type;
    std::string value;
  };
  virtual std::vector<MetadataEntry> metadata() const = 0;
};

}  // namespace bulkhead::model
