// Mixtures of experts for architectures' files: the keys expert_*, and a layer's tensors of experts.
#include <cmath>
#include <utility>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

std::optional<Router> GraphBuilder::router() {
  Router made;
  made.experts = count("expert_count", kMaxExperts, 0);
  made.used = count("expert_used_count", kMaxUsedExperts, 0);
  if (made.experts == 0) return std::nullopt;
  if (made.used == 0 || made.used > made.experts)
    corrupt("metadata key " + key("expert_used_count") + " is " + std::to_string(made.used) +
            ", not from 1 to the " + std::to_string(made.experts) + " experts that there are");
  constexpr std::uint64_t kSoftmax = 1;
  if (count("expert_gating_func", 16, kSoftmax) != kSoftmax)
    refuse("weights its experts by another function than softmax, which is not supported for " +
           std::string("architecture ") + prefix_);
  if (count("expert_group_count", kMaxExperts, 0) > 1)
    refuse("chooses experts by groups, which is not supported for architecture " + prefix_);
  // The router takes entries by fours.
  if (embedding() % 4 != 0)
    refuse("is a mixture of experts whose embedding_length " + std::to_string(embedding()) +
           " is not a multiple of 4");
  const double scale = number("expert_weights_scale", 1.0);
  if (!(std::isfinite(scale) && scale >= 0))
    corrupt("metadata key " + key("expert_weights_scale") + " is not a positive number");
  if (scale != 0) made.scale = static_cast<float>(scale);  // 0: as if it were not there
  return made;
}

std::vector<MatrixPart> LayerBuilder::expert_rows(const std::string& name, std::uint64_t width,
                                                  std::uint64_t rows, std::uint32_t experts) {
  const std::string stacked = block_ + name + "_exps.weight";
  const std::string first = block_ + name + ".0.weight";
  // Files from before experts were stacked have a tensor for each.
  const bool apart = !model_.has_ && model_.file().find_tensor(stacked) == nullptr &&
                     model_.file().find_tensor(first) != nullptr;
  if (!apart) return {{model_.tensor(stacked, width, rows, experts), 0, rows}};
  std::vector<MatrixPart> parts;
  for (std::uint32_t expert = 0; expert < experts; ++expert)
    parts.push_back(this->rows(name + "." + std::to_string(expert), width, rows));
  const auto type_of = [&](const MatrixPart& part) {
    return model_.file().find_tensor(model_.graph_.tensors[part.tensor].name)->type;
  };
  for (const MatrixPart& part : parts) {
    if (model_.status().ok() && type_of(part) != type_of(parts.front()))
      model_.refuse("the experts of " + block_ + name + " differ in their tensor types");
  }
  return parts;
}

Experts LayerBuilder::experts(Router router, const std::string& norm, float epsilon,
                              ActivationIndex in, std::uint32_t width) {
  const std::uint32_t embedding = model_.embedding();
  Experts made;
  made.in = in;
  made.width = width;
  made.router = router;
  made.router.rows = model_.add(
      VectorRow{{{model_.float_rows(name("ffn_gate_inp.weight"), embedding, router.experts)}}});
  made.router.gain = vector(norm, embedding);
  made.router.epsilon = epsilon;
  made.gate = expert_rows("ffn_gate", embedding, width, router.experts);
  made.up = expert_rows("ffn_up", embedding, width, router.experts);
  made.down = expert_rows("ffn_down", width, embedding, router.experts);
  return made;
}

void LayerBuilder::add_biases(Experts& experts) {
  const auto biases = [&](const char* part, std::uint64_t rows) {
    return model_.add(VectorRow{{{model_.float_rows(name(std::string(part) + "_exps.bias"), rows,
                                                    experts.router.experts)}}});
  };
  experts.router.bias =
      model_.add(VectorRow{{{model_.tensor(name("ffn_gate_inp.bias"), experts.router.experts)}}});
  experts.gate_bias = biases("ffn_gate", experts.width);
  experts.up_bias = biases("ffn_up", experts.width);
  experts.down_bias = biases("ffn_down", model_.embedding());
}

void LayerBuilder::share(Experts& experts, ActivationIndex shared, const std::string& gate) {
  experts.shared = shared;
  if (gate.empty() || !model_.status().ok()) return;
  experts.router.shared_gate = true;
  model_.graph_.vectors[experts.router.rows].parts.push_back(
      {model_.tensor(name(gate + ".weight"), model_.embedding())});
}

}  // namespace bulkhead::model
