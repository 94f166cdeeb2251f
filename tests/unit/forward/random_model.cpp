#include "random_model.hpp"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>

#include "random_keys.hpp"
#include "tools/model-maker/random_blocks.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::forward {
namespace {

using model::testing::GgufBuilder;

// The name without the layer's number.
std::string part_of(const std::string& name) {
  return name.starts_with("blk.") ? name.substr(name.find('.', 4) + 1) : name;
}

// Decides which optional tensors a model has.
class OptionalTensors {
 public:
  OptionalTensors(std::uint64_t seed, const std::string& keys)
      : seed_(seed),
        stretched_(keys.find("rope.scaling.factor") != std::string::npos),
        long_(keys.find("longrope") != std::string::npos) {}

  bool has(const std::string& name) const {
    const std::string part = part_of(name);
    if (name == "rope_freqs.weight") return !stretched_ && decides(name, 4);
    if (name.starts_with("rope_factors_")) return long_ || decides("rope_factors", 2);
    // A model has all three biases, or none.
    if (part == "attn_q.bias" || part == "attn_k.bias" || part == "attn_v.bias")
      return decides(name.substr(0, name.size() - part.size()) + "qkv.bias", 2);
    if (part == "attn_kv_b.weight") return decides("joined keys and values", 2);
    if (part == "attn_q_norm.weight" || part == "attn_k_norm.weight") return decides("norms", 2);
    return decides(name, 2);
  }

 private:
  bool decides(const std::string& name, std::uint32_t one_in) const {
    return Draw(seed_ * 31 + std::hash<std::string>()(name)).one_in(one_in);
  }
  const std::uint64_t seed_;
  const bool stretched_, long_;
};

model::TensorType type_of(const model::TensorRow& row, Draw& draw) {
  using model::TensorType;
  if (row.rows == 1 && row.slices == 1) return TensorType::kF32;
  // With numbers above 0, states would grow without end.
  if (part_of(row.name) == "ssm_a") return TensorType::kF32;
  const TensorType floats = draw.of({TensorType::kF32, TensorType::kF16, TensorType::kBF16});
  if (row.plain || draw.one_in(5)) return floats;
  std::vector<TensorType> fit;
  for (const gpu::kernels::TensorRow& each : gpu::kernels::kTensorRows) {
    if (!each.is_float() && row.width % each.block_weights == 0)
      fit.push_back(static_cast<TensorType>(each.id));
  }
  return fit.empty() ? floats : fit[draw.below(static_cast<std::uint32_t>(fit.size()))];
}

// The deviation of weights of which a sum of `width` products has about `wanted`.
double deviation_of(const model::TensorRow& row) {
  const std::string part = part_of(row.name);
  const double width = static_cast<double>(row.width);
  if (row.rows == 1 && row.slices == 1) return 0.4;
  if (part.starts_with("ssm_conv1d") || part == "shortconv.conv.weight" || part.ends_with(".bias"))
    return 0.5;
  if (part.starts_with("token_embd") || part.starts_with("per_layer_token_embd")) return 1;
  if (part == "ffn_gate_inp.weight") return 3 / std::sqrt(width);
  return 1.2 / std::sqrt(width);
}

void fill(const model::TensorRow& row, model::TensorType type, Draw& draw,
          std::span<std::byte> bytes) {
  model_maker::Random random(draw.below(1U << 30), 1, 1);
  const std::string part = part_of(row.name);
  const bool vector = row.rows == 1 && row.slices == 1;
  if (part == "ssm_a") return model_maker::random_rates(random, bytes);
  if (part.starts_with("rope_f")) {
    for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4) {
      const float factor = 1 + 0.25F * static_cast<float>(draw.below(16));
      std::memcpy(bytes.data() + at, &factor, 4);
    }
    return;
  }
  const bool multiplies =
      part.find("norm") != std::string::npos || part.find("scale") != std::string::npos;
  if (vector && multiplies && !part.ends_with(".bias"))
    return model_maker::random_norm(random, bytes);
  model_maker::random_weights(type, deviation_of(row), random, bytes);
}

// Replaces the value of a number, or of an array's first one, or leaves it out. Returns what has changed.
std::string change_a_number(Draw& draw, GgufBuilder& file) {
  constexpr std::uint32_t kUint32 = 4, kFloat32 = 6, kArray = 9;
  for (;;) {
    if (draw.one_in(5)) {
      const std::string gone =
          file.metadata[1 + draw.below(static_cast<std::uint32_t>(file.metadata.size() - 1))].first;
      file.drop(gone);
      return gone + " is left out";
    }
    auto& [key, value] =
        file.metadata[draw.below(static_cast<std::uint32_t>(file.metadata.size()))];
    std::uint32_t type = 0;
    std::memcpy(&type, value.data(), 4);
    const std::uint32_t number =
        draw.of({0U, 1U, 2U, 3U, 5U, 7U, 33U, 1000U, 1024U, 4096U, 65535U, 65536U, 1U << 20,
                 1U << 30, 0x7fffffffU, 0xfffffffeU, 0xffffffffU});
    const float real =
        draw.of({0.0F, -1.0F, -0.0F, 1e-30F, 1e30F, std::numeric_limits<float>::infinity(),
                 std::numeric_limits<float>::quiet_NaN()});
    if (type == kUint32) {
      std::memcpy(value.data() + 4, &number, 4);
    } else if (type == kFloat32) {
      std::memcpy(value.data() + 4, &real, 4);
    } else if (type == kArray && value.size() > 20) {
      std::memcpy(value.data() + 16, &number, 4);
    } else {
      continue;
    }
    return key +
           (type == kFloat32 ? " is " + std::to_string(real) : " is " + std::to_string(number));
  }
}

std::uint64_t bytes_of(const model::ModelGraph& graph) {
  std::uint64_t all = 0;
  for (const model::TensorRow& row : graph.tensors)
    all += row.width * row.rows * row.slices * 4;
  return all;
}

// Adds the tensors of a graph, and returns the file's bytes.
std::string with_tensors(GgufBuilder& file, const model::ModelGraph& graph, Draw& draw,
                         std::string& types, bool filled) {
  std::vector<const model::TensorRow*> rows;
  std::set<std::string> named;
  for (const model::TensorRow& row : graph.tensors) {
    if (!named.insert(row.name).second) continue;  // several layers or operations use it
    std::vector<std::uint64_t> ne{row.width};
    if (row.rows != 1 || row.slices != 1 || row.plain) ne.push_back(row.rows);
    if (row.slices != 1) ne.push_back(row.slices);
    const model::TensorType type = type_of(row, draw);
    file.tensor(row.name, ne, static_cast<std::uint32_t>(type));
    rows.push_back(&row);
    if (ne.size() > 1) types += row.name + " " + model::traits(type)->name + ", ";
  }
  std::string bytes = file.bytes();
  const std::size_t begin = bytes.size() - file.data_bytes;
  for (std::size_t i = 0; filled && i < rows.size(); ++i) {
    const auto type = static_cast<model::TensorType>(file.tensors[i].type);
    const model::TensorTypeTraits& traits = *model::traits(type);
    const std::uint64_t size = rows[i]->width * rows[i]->rows * rows[i]->slices /
                               traits.block_weights * traits.block_bytes;
    fill(*rows[i], type, draw,
         std::as_writable_bytes(std::span(bytes).subspan(begin + file.tensors[i].offset, size)));
  }
  return bytes;
}

}  // namespace

namespace {

// Adds a block that drafts tokens to the file's number of blocks.
void add_drafting_block(const std::string& architecture, GgufBuilder& file) {
  for (auto& [key, value] : file.metadata) {
    if (key != architecture + ".block_count") continue;
    std::uint32_t blocks = 0;
    std::memcpy(&blocks, value.data() + 4, 4);
    ++blocks;
    std::memcpy(value.data() + 4, &blocks, 4);
  }
  file.u32(architecture + ".nextn_predict_layers", 1);
}

enum class RandomKind { kUsual, kWild, kDrafts };

RandomModel made_of(std::uint64_t seed, const std::string& architecture, RandomKind kind) {
  const bool wild = kind == RandomKind::kWild;
  Draw draw(seed * 977 + (wild ? 6 : 5));
  const auto all = model::architectures();
  RandomModel made;
  made.architecture = all[draw.below(static_cast<std::uint32_t>(all.size()))]->name;
  if (!architecture.empty()) made.architecture = architecture;
  GgufBuilder file;
  const RandomKeys keys = add_random_keys(made.architecture, draw, file);
  made.description = keys.description;
  made.vocabulary = keys.vocabulary;
  made.context = keys.context;
  if (kind == RandomKind::kDrafts) add_drafting_block(made.architecture, file);
  if (wild) made.description += "\n" + change_a_number(draw, file) + "\n";
  const std::string head = file.bytes();
  const auto empty = model::GgufFile::from_memory(std::as_bytes(std::span(head)), "imagined.gguf");
  if (!empty.ok()) {
    made.refusal = empty.error().message();
    return made;
  }
  const OptionalTensors options(seed, keys.description);
  const auto has = [&](const std::string& name) { return options.has(name); };
  auto graph = model::imagine_model(**empty, has);
  if (kind == RandomKind::kDrafts && graph.ok()) {
    auto block = model::imagine_drafting_block(**empty, has);
    if (block.ok()) {
      graph->tensors.insert(graph->tensors.end(), block->tensors.begin(), block->tensors.end());
    } else {
      graph = block.error();
    }
  }
  constexpr std::uint64_t kMostBytes = 64 << 20;
  if (!graph.ok()) {
    made.refusal = graph.error().message();
  } else if (bytes_of(*graph) < kMostBytes) {
    made.bytes = with_tensors(file, *graph, draw, made.description, !wild);
  } else {
    made.refusal = "it is too large for a test";
  }
  return made;
}

}  // namespace

RandomModel random_model(std::uint64_t seed, const std::string& architecture) {
  return made_of(seed, architecture, RandomKind::kUsual);
}

RandomModel random_model_that_drafts(std::uint64_t seed, const std::string& architecture) {
  return made_of(seed, architecture, RandomKind::kDrafts);
}

RandomModel model_with_a_wild_number(std::uint64_t seed) {
  return made_of(seed, "", RandomKind::kWild);
}

std::vector<std::uint32_t> random_text(const RandomModel& model, std::uint64_t seed,
                                       std::size_t length) {
  Draw draw(seed * 31 + length);
  std::vector<std::uint32_t> text(length);
  for (std::uint32_t& token : text)
    token = draw.below(model.vocabulary);
  return text;
}

}  // namespace bulkhead::forward
