// Reads a file's keys for the descriptions of architectures: numbers, texts, the shapes of heads, and what layers see.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

// Some converters write the same number for each layer.
Result<std::optional<std::uint64_t>> GraphBuilder::same_in_all_layers(std::string_view name) const {
  if (file_.array_length(key(name)).value_or(0) == 0) return file_.get_uint(key(name));
  const auto found = file_.get_ints(key(name));
  if (!found.ok()) return found.error();
  const std::vector<std::int64_t>& each = **found;
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (each[i] < 0)
      return damaged("metadata key " + key(name) + " is " + std::to_string(each[i]) +
                     " for layer " + std::to_string(i));
    if (each[i] != each[0])
      return unsupported("metadata key " + key(name) + " is " + std::to_string(each[0]) +
                         " for layer 0 and " + std::to_string(each[i]) + " for layer " +
                         std::to_string(i) + "; for architecture " + prefix_ +
                         " only models whose layers have the same are supported");
  }
  return std::optional(static_cast<std::uint64_t>(each[0]));
}

std::uint32_t GraphBuilder::count(std::string_view name, std::uint64_t limit,
                                  std::optional<std::uint64_t> fallback) {
  read_keys_.emplace(name);
  const auto found = same_in_all_layers(name);
  if (!found.ok()) {
    fail(found.error());
    return 1;
  }
  if (fallback && found->value_or(0) == 0) return static_cast<std::uint32_t>(*fallback);
  if (!*found) {
    corrupt("metadata key " + key(name) + " is missing");
    return 1;
  }
  const std::uint64_t value = **found;
  const std::uint64_t least = fallback == 0U ? 0 : 1;
  if (value < least || value > limit) {
    corrupt("metadata key " + key(name) + " is " + std::to_string(value) + ", not from " +
            std::to_string(least) + " to " + std::to_string(limit));
    return 1;
  }
  return static_cast<std::uint32_t>(value);
}

std::vector<std::uint32_t> GraphBuilder::counts(std::string_view name, std::uint64_t limit,
                                                std::optional<std::uint64_t> fallback) {
  if (!file_.array_length(key(name)))
    return std::vector<std::uint32_t>(layers_, count(name, limit, fallback));
  read_keys_.emplace(name);
  std::vector<std::uint32_t> made(layers_, 1);
  const auto found = file_.get_ints(key(name));
  if (!found.ok()) {
    fail(found.error());
    return made;
  }
  const std::int64_t least = fallback == 0U ? 0 : 1;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const std::int64_t value = i < (*found)->size() ? (**found)[i] : -1;
    if (value < least || static_cast<std::uint64_t>(value) > limit) {
      corrupt("metadata key " + key(name) + " has no number from " + std::to_string(least) +
              " to " + std::to_string(limit) + " for layer " + std::to_string(i));
      return made;
    }
    made[i] = static_cast<std::uint32_t>(value);
  }
  return made;
}

std::uint32_t GraphBuilder::window(std::optional<std::uint64_t> fallback) {
  constexpr const char* kWindow = "attention.sliding_window";
  const auto found = same_in_all_layers(kWindow);
  if (!found.ok() || !*found || **found <= kMaxContext)
    return count(kWindow, kMaxContext, fallback);
  read_keys_.emplace(kWindow);
  return static_cast<std::uint32_t>(kMaxContext);
}

std::vector<bool> GraphBuilder::windowed_layers(std::uint32_t period, FullLayer full) {
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  std::vector<bool> made(layers_);
  if (file_.array_length(key(kPattern))) {
    const std::vector<std::uint32_t> marks = counts(kPattern, 1, 0);
    for (std::uint32_t i = 0; i < layers_; ++i)
      made[i] = marks[i] != 0;
  } else {
    const std::uint32_t found = count(kPattern, kMaxLayers, period);
    const std::uint32_t shift = full == FullLayer::kLast ? 1 : 0;
    for (std::uint32_t i = 0; i < layers_; ++i)
      made[i] = (i + shift) % found != 0;
  }
  return made;
}

double GraphBuilder::number(std::string_view name, double fallback) {
  read_keys_.emplace(name);
  const auto value = file_.get_float(key(name));
  if (value.ok()) return value->value_or(fallback);
  fail(value.error());
  return fallback;
}

double GraphBuilder::positive(std::string_view name, double fallback) {
  const double value = number(name, fallback);
  if (value == 0) return fallback;
  if (!(value > 0 && value < 1e6))
    corrupt("metadata key " + key(name) + " is not a positive number");
  return value;
}

double GraphBuilder::score_scale() {
  const double found = number("attention.scale", 0);
  if (!(found >= 0 && found < 1e6))
    corrupt("metadata key " + key("attention.scale") + " is not a number from 0 to 1000000");
  return found;
}

std::vector<double> GraphBuilder::numbers_of_layers(const std::string& key,
                                                    std::optional<double> fallback) {
  std::vector<double> made(layers_, fallback.value_or(0));
  if (fallback && !file_.has(key)) return made;
  const auto one = file_.get_float(key);
  if (one.ok() && *one) {
    made.assign(made.size(), **one);
  } else {
    const auto each = file_.get_floats(key);
    if (!each.ok() || !*each || (*each)->size() < made.size()) {
      corrupt("metadata key " + key + " is missing, or has no number for each layer");
      return made;
    }
    made.assign((*each)->begin(), (*each)->begin() + layers_);
  }
  for (const double number : made) {
    if (!(std::abs(number) < 1e6))
      corrupt("metadata key " + key + " has a number that is not between -1000000 and 1000000");
  }
  return made;
}

std::string GraphBuilder::text(std::string_view name, std::string_view fallback) {
  read_keys_.emplace(name);
  const auto value = file_.get_string(key(name));
  if (value.ok()) return std::string(value->value_or(fallback));
  fail(value.error());
  return std::string(fallback);
}

bool GraphBuilder::flag(std::string_view name, bool fallback) {
  read_keys_.emplace(name);
  const auto value = file_.get_bool(key(name));
  if (value.ok()) return value->value_or(fallback);
  fail(value.error());
  return fallback;
}

bool GraphBuilder::has_key(std::string_view name) const {
  return file_.has(key(name));
}

bool GraphBuilder::has_count(std::string_view name) const {
  const auto found = same_in_all_layers(name);
  return !found.ok() || found->value_or(0) != 0;  // whoever reads the key reports the error
}

HeadShape GraphBuilder::heads() {
  const std::uint32_t heads = count("attention.head_count", kMaxHeads);
  return heads_with(heads, count("attention.head_count_kv", kMaxHeads, heads));
}

HeadShape GraphBuilder::heads_of_some(std::vector<bool>& attends) {
  const std::vector<std::uint32_t> each = counts("attention.head_count_kv", kMaxHeads, 0);
  const std::uint32_t most = *std::ranges::max_element(each);
  // The size of the KV cache is counted in tokens of layers with attention.
  if (most == 0) refuse("has no layer that attends to all positions, which is not supported");
  attends.clear();
  for (const std::uint32_t heads : each) {
    attends.push_back(heads != 0);
    if (heads != 0 && heads != most)
      refuse("has " + std::to_string(heads) + " key-value heads in one layer and " +
             std::to_string(most) + " in another; only models with as many in each are supported");
  }
  return heads_with(count("attention.head_count", kMaxHeads), std::max(most, 1U));
}

std::vector<HeadShape> GraphBuilder::heads_of_layers() {
  const std::vector<std::uint32_t> heads = counts("attention.head_count", kMaxHeads, 0),
                                   kv_heads = counts("attention.head_count_kv", kMaxHeads, 0);
  std::vector<HeadShape> made;
  std::uint32_t size = 0;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    HeadShape& layer = made.emplace_back(HeadShape{heads[i], kv_heads[i], 0});
    if (kv_heads[i] == 0) continue;
    if (heads[i] == 0) {
      corrupt("layer " + std::to_string(i) + " has " + std::to_string(kv_heads[i]) +
              " key-value heads (" + key("attention.head_count_kv") + ") and no attention heads");
      continue;
    }
    layer = heads_with(heads[i], kv_heads[i]);
    if (size != 0 && layer.size != size)
      refuse("has heads of different sizes; write the size to " + key("attention.key_length"));
    size = layer.size;
  }
  // The size of the KV cache is counted in tokens of layers with attention.
  if (size == 0) refuse("has no layer that attends to all positions, which is not supported");
  return made;
}

HeadShape widest_of(const std::vector<HeadShape>& layers) {
  HeadShape widest;
  for (const HeadShape& layer : layers) {
    widest.heads = std::max(widest.heads, layer.heads);
    widest.kv_heads = std::max(widest.kv_heads, layer.kv_heads);
    widest.size = std::max(widest.size, layer.size);
  }
  return widest;
}

HeadShape GraphBuilder::heads_with(std::uint32_t heads, std::uint32_t kv_heads) {
  HeadShape shape;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  if (shape.heads % shape.kv_heads != 0)
    corrupt(std::to_string(shape.heads) + " attention heads are not a multiple of " +
            std::to_string(shape.kv_heads) + " key-value heads");
  if (graph_.embedding % shape.heads != 0 && !has_count("attention.key_length"))
    corrupt("embedding_length " + std::to_string(graph_.embedding) +
            " is not a multiple of head_count " + std::to_string(shape.heads) + " and " +
            key("attention.key_length") + " is missing");
  const std::uint64_t square = graph_.embedding / shape.heads;
  shape.size = count("attention.key_length", kMaxHeadSize, square);
  const std::uint32_t value_size = count("attention.value_length", kMaxHeadSize, square);
  if (shape.size != value_size)
    refuse("attention.key_length " + std::to_string(shape.size) + " and attention.value_length " +
           std::to_string(value_size) + " differ; only models with equal ones are supported");
  if (shape.size == 0) corrupt("the head size is 0");
  return shape;
}

}  // namespace bulkhead::model
