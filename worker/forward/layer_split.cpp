#include "worker/forward/layer_split.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <variant>

namespace bulkhead::forward {

using model::ActivationIndex;
using model::kAbsent;
using model::kStream;

namespace {

// What an operation uses. These are pointers, so that a stage can renumber its stores.
struct Uses {
  std::vector<ActivationIndex> reads, writes;
  std::vector<model::VectorIndex> vectors;
  model::KvIndex* kv = nullptr;
  model::StateIndex* state = nullptr;
};

struct UsesOf {
  Uses operator()(model::Norm& norm) const {
    Uses uses{{norm.in}, {norm.out}, {norm.gain, norm.bias}};
    if (norm.adds) uses.reads.push_back(norm.out);
    return uses;
  }
  Uses operator()(model::Copy& copy) const { return {{copy.in}, {copy.out}, {copy.factor}}; }
  Uses operator()(model::Product& product) const {
    Uses uses{{product.in}, {product.out}, {product.bias}};
    if (product.adds) uses.reads.push_back(product.out);
    return uses;
  }
  Uses operator()(model::SliceProduct& product) const { return {{product.in}, {product.out}, {}}; }
  Uses operator()(model::Rotate& rotate) const {
    return {{rotate.qkv}, {}, {rotate.bias, rotate.q_gain, rotate.k_gain}, &rotate.kv};
  }
  Uses operator()(model::RotateLatent& rotate) const {
    return {{rotate.q, rotate.absorbed, rotate.row}, {}, {rotate.gain}, &rotate.kv};
  }
  Uses operator()(model::Attend& attend) const {
    return {{}, {attend.out}, {attend.rules.sinks}, &attend.kv};
  }
  Uses operator()(model::GatedProduct& gated) const {
    return {{gated.in, gated.factors}, {gated.out}, {gated.bias}};
  }
  Uses operator()(model::Experts& experts) const {
    const model::Router& router = experts.router;
    return {{experts.in, experts.shared, experts.out},
            {experts.out},
            {router.rows, router.gain, router.bias, router.choice_bias, router.expert_scales,
             experts.gate_bias, experts.up_bias, experts.down_bias}};
  }
  Uses operator()(model::Gated& gated) const {
    return {{gated.gate, gated.values}, {gated.out}, {}};
  }
  Uses operator()(model::DeltaNet& net) const {
    return {{net.in},
            {net.out},
            {net.taps, net.taps_bias, net.rates, net.bias, net.skip, net.gain},
            nullptr,
            &net.state};
  }
  Uses operator()(model::HasOwnKernel auto& operation) const {
    const auto list = [](const auto& named) {
      std::vector<std::uint32_t> made(named.begin(), named.end());
      std::erase(made, model::kKept);
      return made;
    };
    Uses uses{list(operation.reads()), list(operation.writes()), list(operation.vectors())};
    if constexpr (requires { operation.state; }) uses.state = &operation.state;
    return uses;
  }
};

Uses uses_of(model::Operation& operation) {
  return std::visit(UsesOf(), operation);
}

// Returns for each layer the activations, besides the stream, that it or a later layer needs and that no layer from
// it on makes first.
std::vector<std::set<ActivationIndex>> needed_before(model::ModelGraph graph) {
  std::vector<std::set<ActivationIndex>> needed(graph.layers.size());
  std::set<ActivationIndex> live;
  for (std::size_t layer = graph.layers.size(); layer-- > 0;) {
    std::vector<model::Operation>& operations = graph.layers[layer].operations;
    for (std::size_t i = operations.size(); i-- > 0;) {
      const Uses uses = uses_of(operations[i]);
      for (const ActivationIndex written : uses.writes)
        live.erase(written);
      for (const ActivationIndex read : uses.reads) {
        if (read != kStream && read != kAbsent) live.insert(read);
      }
    }
    needed[layer] = live;
  }
  return needed;
}

// Returns the first and the last layer that use each key-value store.
std::vector<std::pair<std::size_t, std::size_t>> users_of_stores(model::ModelGraph graph) {
  std::vector<std::pair<std::size_t, std::size_t>> users(graph.kv.size(), {SIZE_MAX, 0});
  for (std::size_t layer = 0; layer < graph.layers.size(); ++layer) {
    for (model::Operation& operation : graph.layers[layer].operations) {
      const Uses uses = uses_of(operation);
      if (uses.kv == nullptr) continue;
      auto& [first, last] = users[*uses.kv];
      first = std::min(first, layer);
      last = layer;
    }
  }
  return users;
}

// Renumbers the stores of one kind in the order in which a stage's layers use them.
template <typename Store>
void take_store(std::uint32_t& index, std::vector<std::uint32_t>& numbers,
                const std::vector<Store>& all, std::vector<Store>& taken) {
  if (numbers[index] == kAbsent) {
    numbers[index] = static_cast<std::uint32_t>(taken.size());
    taken.push_back(all[index]);
  }
  index = numbers[index];
}

}  // namespace

std::vector<std::string> obstacles(const model::ModelGraph& graph) {
  std::vector<std::string> found(graph.layers.size());
  const auto needed = needed_before(graph);
  const auto users = users_of_stores(graph);
  for (std::size_t layer = 0; layer < found.size(); ++layer) {
    if (layer == 0) found[layer] = "it is the first one";
    for (const auto& [first, last] : users) {
      if (first < layer && layer <= last)
        found[layer] = "layers before and after it share keys and values";
    }
    if (!needed[layer].empty()) {
      found[layer] = "layers after it need \"" + graph.activations[*needed[layer].begin()].name +
                     "\", which is made before it";
    }
  }
  return found;
}

model::ModelGraph stage_graph(const model::ModelGraph& graph, StageLayers layers, bool prepared) {
  model::ModelGraph stage = graph;
  stage.layers.assign(graph.layers.begin() + layers.first, graph.layers.begin() + layers.end);
  stage.kv.clear();
  stage.states.clear();
  std::vector<std::uint32_t> kv(graph.kv.size(), kAbsent), states(graph.states.size(), kAbsent);
  std::vector<bool> used(graph.vectors.size());
  for (model::Layer& layer : stage.layers) {
    for (model::Operation& operation : layer.operations) {
      const Uses uses = uses_of(operation);
      for (const model::VectorIndex vector : uses.vectors) {
        if (vector != kAbsent) used[vector] = true;
      }
      if (uses.kv != nullptr) take_store(*uses.kv, kv, graph.kv, stage.kv);
      if (uses.state != nullptr) take_store(*uses.state, states, graph.states, stage.states);
    }
  }
  if (layers.first > 0) {
    stage.start = prepared ? model::StreamStart::kBroughtAndPrepared : model::StreamStart::kBrought;
    stage.lookups.clear();
  }
  stage.makes_logits = layers.end == graph.layers.size();
  if (stage.makes_logits) {
    for (const model::VectorIndex vector :
         {graph.output_gain, graph.output_bias, graph.logit_bias}) {
      if (vector != kAbsent) used[vector] = true;
    }
  }
  // Vectors keep their numbers; the vectors of other stages take no memory.
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) stage.vectors[i].parts.clear();
  }
  return stage;
}

std::uint64_t bytes_of(const PartSizes& sizes, StageLayers layers) {
  std::uint64_t bytes = layers.first == 0 ? sizes.embedding : 0;
  if (layers.end == sizes.layers.size()) bytes += sizes.output;
  for (std::uint32_t i = layers.first; i < layers.end; ++i)
    bytes += sizes.layers[i];
  return bytes;
}

bool fits(std::span<const StageLayers> stages, const PartSizes& sizes,
          std::span<const std::uint64_t> free) {
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (bytes_of(sizes, stages[i]) > free[i]) return false;
  }
  return true;
}

Result<std::vector<StageLayers>> share_out_layers(const PartSizes& sizes,
                                                  std::span<const std::string> obstacles,
                                                  std::span<const std::uint64_t> free) {
  const std::size_t layers = sizes.layers.size(), stages = free.size();
  const auto load = [&](std::size_t stage, std::size_t first, std::size_t end) {
    const std::uint64_t bytes =
        bytes_of(sizes, {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end)});
    return static_cast<double>(bytes) /
           static_cast<double>(std::max<std::uint64_t>(free[stage], 1));
  };
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  // [stage][end]: the load of the fullest device if the stages up to this one have the layers before `end`.
  std::vector<std::vector<double>> fullest(stages, std::vector<double>(layers + 1, kImpossible));
  std::vector<std::vector<std::size_t>> begin(stages, std::vector<std::size_t>(layers + 1));
  for (std::size_t stage = 0; stage < stages; ++stage) {
    for (std::size_t end = 1; end <= layers; ++end) {
      for (std::size_t first = 0; first < end; ++first) {
        if ((first == 0) != (stage == 0)) continue;
        if (stage > 0 && !obstacles[first].empty()) continue;
        const double others = stage == 0 ? 0 : fullest[stage - 1][first];
        const double most = std::max(others, load(stage, first, end));
        if (most >= fullest[stage][end]) continue;
        fullest[stage][end] = most;
        begin[stage][end] = first;
      }
    }
  }
  if (fullest[stages - 1][layers] == kImpossible) {
    std::string why;
    for (std::size_t i = 1; i < layers && why.empty(); ++i) {
      if (!obstacles[i].empty()) why = "; layer " + std::to_string(i) + ": " + obstacles[i];
    }
    return Error(ErrorCode::kUnsupported,
                 "models[].split: the model's " + std::to_string(layers) +
                     " layers can't be shared out to " + std::to_string(stages) + " devices" + why +
                     "; name fewer devices in models[].devices, or leave out models[].split to "
                     "have the whole model on each");
  }
  std::vector<StageLayers> made(stages);
  std::size_t end = layers;
  for (std::size_t stage = stages; stage-- > 0;) {
    made[stage] = {static_cast<std::uint32_t>(begin[stage][end]), static_cast<std::uint32_t>(end)};
    end = begin[stage][end];
  }
  return made;
}

}  // namespace bulkhead::forward
