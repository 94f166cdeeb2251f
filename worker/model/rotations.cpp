// Reads from a file's keys rope.* how positions turn heads: the frequencies of every kind of stretching.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

// Returns the divisors of a rotation's frequencies; empty if the file has no tensor of that name.
std::vector<double> GraphBuilder::factors(const std::string& name, std::uint32_t pairs) {
  const TensorIndex index = optional_tensor(name, pairs);
  if (index == kAbsent || has_ || !status_.ok()) return {};
  const TensorInfo* const tensor = file_.find_tensor(name);
  std::vector<double> made;
  for (std::size_t i = 0; i < pairs; ++i) {
    float factor = 0;
    std::memcpy(&factor, tensor->data.data() + i * sizeof factor, sizeof factor);
    if (!(factor > 0.0F && std::isfinite(factor)))
      corrupt(name + " has an entry that is not a positive number (index " + std::to_string(i) +
              ")");
    made.push_back(static_cast<double>(factor));
  }
  return made;
}

std::pair<std::uint32_t, double> GraphBuilder::rope_size(const HeadShape& heads,
                                                         const std::string& ending,
                                                         double usual_base) {
  const std::string size_key = "rope.dimension_count" + ending;
  const std::string base_key = "rope.freq_base" + ending;
  const std::uint32_t usual =
      ending.empty() ? heads.size : count("rope.dimension_count", kMaxHeadSize, heads.size);
  const std::uint32_t dimensions = count(size_key, kMaxHeadSize, std::min(usual, heads.size));
  if (dimensions % 2 != 0 || dimensions > heads.size)
    corrupt("metadata key " + key(size_key) + " is " + std::to_string(dimensions) +
            ", not even and at most the head size " + std::to_string(heads.size));
  const double base = number(base_key, usual_base);
  if (!(base > 1.0 && base < 1e15))
    corrupt("metadata key " + key(base_key) + " is not a base for rotary positions");
  return {dimensions, static_cast<double>(static_cast<float>(base))};
}

double GraphBuilder::scaling_factor() {
  const double factor = number("rope.scaling.factor", number("rope.scale_linear", 1.0));
  if (factor == 0) return 1;  // counts as absent
  if (!(factor > 0.0 && factor < 1e6))
    corrupt("metadata key " + key("rope.scaling.factor") + " is not a positive number");
  return static_cast<double>(static_cast<float>(factor));
}

double GraphBuilder::attention_factor() {
  return positive("rope.scaling.attn_factor", 1.0);
}

double GraphBuilder::yarn_magnitude(double usual) {
  const double whole = number("rope.scaling.yarn_attn_factor", 1.0);
  return whole == 1.0 ? usual : whole;
}

bool GraphBuilder::has_rope_sections() {
  constexpr const char* kSections = "rope.dimension_sections";
  if (!file_.array_length(key(kSections))) return false;
  const auto found = file_.get_ints(key(kSections));
  if (!found.ok()) {
    fail(found.error());
    return false;
  }
  return (*found)->size() >= 2 && (**found)[0] > 0 && (**found)[1] > 0;
}

RopeIndex GraphBuilder::rope(const HeadShape& heads, RopePairing pairing) {
  if (text("rope.scaling.type", "") == "longrope") return long_rope(heads, pairing);
  const auto [dimensions, base] = rope_size(heads);
  return rope(dimensions, base, dimensions / 2, pairing);
}

RopeIndex GraphBuilder::half_rope(const HeadShape& heads, RopePairing pairing) {
  const auto [dimensions, base] = rope_size(heads);
  if (dimensions % 4 != 0)
    refuse("turns half of " + std::to_string(dimensions) + " entries of a head (" +
           key("rope.dimension_count") + "), which are not pairs");
  if (text("rope.scaling.type", "") == "longrope")
    refuse("metadata key " + key("rope.scaling.type") +
           " is longrope, which is not supported where only half of a head turns; supported are: "
           "none, linear, yarn, and Llama 3's factors in rope_freqs.weight");
  return rope(dimensions / 2, base, dimensions / 2, pairing);
}

RopeIndex GraphBuilder::rope(std::uint32_t dimensions, double base, std::uint32_t divisor_count,
                             RopePairing pairing) {
  const std::string type = text("rope.scaling.type", "");
  // If there is a factor but no type, it means the linear kind, as in old files that have no type.
  if (!type.empty() && type != "none" && type != "linear" && type != "yarn")
    refuse(
        "rope scaling \"" + type.substr(0, 64) +
        "\" is not supported; supported are: none, linear, yarn, longrope, and Llama 3's factors "
        "in rope_freqs.weight");
  if (type != "yarn" && yarn_magnitude(1.0) != 1.0)
    refuse(key("rope.scaling.yarn_attn_factor") + " other than 1 is not supported without YaRN");
  const bool linear = (type.empty() || type == "linear") && scaling_factor() != 1.0;

  const std::vector<double> divisors = factors("rope_freqs.weight", divisor_count);
  Rope made;
  made.pairing = pairing;
  made.magnitude = attention_factor();
  for (std::uint32_t i = 0; i < dimensions / 2; ++i) {
    double frequency = std::pow(base, -2.0 * i / dimensions);
    if (i < divisors.size()) frequency /= divisors[i];
    if (linear) frequency /= scaling_factor();
    made.frequencies.push_back(frequency);
  }
  if (type == "yarn") stretch_by_yarn(made, base);
  return add(std::move(made));
}

// Pairs that turn often within the original context keep their frequency. Pairs that turn less than once are slowed
// down by the factor. Pairs in between are slowed down in part.
void GraphBuilder::stretch_by_yarn(Rope& rope, double base) {
  const double factor = scaling_factor();
  const double original =
      count("rope.scaling.original_context_length", kMaxContext, graph_.context);
  double share = number("rope.scaling.yarn_ext_factor", 1.0);
  if (share < 0) share = 1;  // counts as absent
  const double dimensions = 2.0 * rope.pairs();
  const auto pair_that_turns = [&](double times) {
    return dimensions * std::log(original / (times * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  const double most = number("rope.scaling.yarn_beta_fast", 32.0);
  const double least = number("rope.scaling.yarn_beta_slow", 1.0);
  // Files of some models name the part of the magnitude that their training removed again.
  const auto magnitude = [factor](double multiplier) {
    return factor > 1 ? 0.1 * multiplier * std::log(factor) + 1 : 1;
  };
  const double taken_away = number("rope.scaling.yarn_log_multiplier", 0);
  rope.magnitude = attention_factor() * yarn_magnitude(magnitude(1) / magnitude(taken_away));
  if (!(most > 0 && least > 0 && share >= 0 && share <= 1 && rope.magnitude > 0 &&
        rope.magnitude < 1e6))
    return corrupt("metadata keys " + key("rope.scaling.*") + " hold numbers that YaRN can't have");
  const double low = std::max(std::floor(pair_that_turns(most)), 0.0);
  const double high = std::min(std::ceil(pair_that_turns(least)), dimensions - 1);
  for (std::uint32_t i = 0; i < rope.pairs(); ++i) {
    const double way = std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
    const double kept = (1 - way) * share;
    rope.frequencies[i] *= kept + (1 - kept) / factor;
  }
}

double GraphBuilder::score_growth(RopeIndex rope) {
  const double multiplier = number("rope.scaling.yarn_log_multiplier", 0);
  if (!status_.ok() || multiplier == 0 || text("rope.scaling.type", "") != "yarn") return 1;
  const double attention = attention_factor();
  const double growth = attention * (1 + multiplier * std::log(std::max(scaling_factor(), 1.0)));
  if (!(growth > 0 && growth < 1e3)) {
    corrupt("metadata key " + key("rope.scaling.yarn_log_multiplier") +
            " is not a multiplier that YaRN can have");
    return 1;
  }
  graph_.ropes[rope].magnitude = attention;
  return growth * growth;
}

RopeIndex GraphBuilder::window_rope(const HeadShape& heads, RopePairing pairing,
                                    double usual_base) {
  const auto [dimensions, base] = rope_size(heads, "_swa", usual_base);
  Rope made;
  made.pairing = pairing;
  for (std::uint32_t i = 0; i < dimensions / 2; ++i)
    made.frequencies.push_back(std::pow(base, -2.0 * i / dimensions));
  return add(std::move(made));
}

RopeIndex GraphBuilder::long_rope(const HeadShape& heads, RopePairing pairing) {
  const auto [dimensions, base] = rope_size(heads);
  const std::uint32_t pairs = dimensions / 2;
  const std::string type = text("rope.scaling.type", "");
  // As in rope(), a factor without a type means the linear kind.
  const bool of_another_kind = type.empty() || type == "linear"
                                   ? scaling_factor() != 1.0
                                   : type != "none" && type != "longrope";
  if (of_another_kind && !has_tensor("rope_factors_short.weight"))
    return rope(dimensions, base, pairs, pairing);
  if (of_another_kind)
    refuse(
        "has LongRoPE's tables (rope_factors_short.weight) and asks for rope scaling of another "
        "kind (" +
        key("rope.scaling.type") + ", " + key("rope.scaling.factor") +
        "); only one of the two is supported");
  Rope made;
  made.pairing = pairing;
  made.magnitude = attention_factor();
  const std::vector<double> few = factors("rope_factors_short.weight", pairs);
  const std::vector<double> many = factors("rope_factors_long.weight", pairs);
  if (few.empty() != many.empty())
    corrupt("of rope_factors_short.weight and rope_factors_long.weight one is missing");
  if (few.empty() && !has_ && type == "longrope")
    corrupt("metadata key " + key("rope.scaling.type") +
            " is longrope, but rope_factors_short.weight and rope_factors_long.weight are missing");
  made.short_context = count("rope.scaling.original_context_length", kMaxContext, graph_.context);
  for (std::uint32_t i = 0; i < pairs; ++i) {
    const double frequency = std::pow(base, -2.0 * i / dimensions);
    made.frequencies.push_back(few.empty() ? frequency : frequency / few[i]);
    if (!many.empty()) made.long_frequencies.push_back(frequency / many[i]);
  }
  return add(std::move(made));
}

}  // namespace bulkhead::model
