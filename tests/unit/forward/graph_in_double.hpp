// Computes a model's graph in double: its operations one after another, for all positions of a text. It takes a
// model of any architecture, and shares no code with the plan, the packing and the kernels.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

class GraphInDouble {
 public:
  using Vector = std::vector<double>;

  GraphInDouble(const model::GgufFile& file, const model::ModelGraph& graph)
      : file_(file), graph_(graph) {}

  // Computes all layers for a text. The results below are of this text. `states`: for a block that drafts tokens, a
  // hidden state for each token.
  void read(std::span<const std::uint32_t> tokens, std::span<const std::vector<float>> states = {});
  // The residual stream after the last norm.
  Vector hidden(std::size_t position) const;
  Vector logits(std::size_t position) const;
  // The least difference, in any router's scores, between the last expert or group that was chosen and the next.
  double least_gap() const { return least_gap_; }

 private:
  // What a layer keeps of a position.
  struct Kept {
    Vector key, value;
  };
  // Entries of an activation, for each position.
  using Columns = std::vector<Vector>;

  const std::vector<double>& tensor(model::TensorIndex index) const;
  Vector vector(model::VectorIndex index) const;
  Vector rows(const model::MatrixPart& part, const double* in, std::size_t slice = 0) const;
  // The product with the transposition of these rows.
  Vector columns(const model::MatrixPart& part, const double* in) const;
  Vector token_row(const model::MatrixPart& rows, std::uint32_t token, double scale) const;
  void turn(double* entries, model::RopeIndex rope, std::size_t position) const;
  std::size_t visible_from(const model::ScoreRules& rules, std::size_t position) const;
  std::size_t visible_to(const model::ScoreRules& rules, std::size_t position) const;
  Vector attended(const model::Attend& attend, std::size_t position) const;
  void rotate_heads(const model::Rotate& rotate, Vector& qkv, std::size_t position) const;
  std::vector<std::uint32_t> choose(const model::Router& router, const Vector& logits,
                                    const Vector& scores);
  void leave_out_groups(const model::Router& router, Vector& by);
  Vector expert(const model::Experts& experts, std::uint32_t index, const double* in) const;
  Columns convolved(const model::DeltaNet& net) const;
  Vector delta_read(const model::DeltaNet& net, const Vector& qkv, const Vector& mixed,
                    Vector& state) const;
  Vector delta_output(const model::DeltaNet& net, const Vector& qkv, const Vector& mixed,
                      Vector read) const;

  void run(const model::Norm& norm);
  void run(const model::Copy& copy);
  void run(const model::Product& product);
  void run(const model::SliceProduct& product);
  void run(const model::Rotate& rotate);
  void run(const model::RotateLatent& rotate);
  void run(const model::Attend& attend);
  void run(const model::GatedProduct& product);
  void run(const model::Gated& gated);
  void run(const model::ChannelDecays& decays);
  void run(const model::DeltaNet& net);
  void run(const model::Experts& experts);
  void run(const model::HeadGates& each);
  void run(const model::HeadNorms& norms);
  void run(const model::PoolColumns& pool);
  void run(const model::PositionRows& rows);
  void run(const model::ShortConvolution& convolution);
  void run(const model::SquaredRelu& relu);
  void run(const model::Xielu& xielu);

  const model::GgufFile& file_;
  const model::ModelGraph& graph_;
  mutable std::map<model::TensorIndex, std::vector<double>> tensors_;
  std::vector<Columns> values_;          // by activation
  std::vector<Vector> waiting_q_;        // by position
  std::vector<double> q_scales_;         // by position
  std::vector<std::vector<Kept>> kept_;  // by KV store and position
  double least_gap_ = 1e9;
};

}  // namespace bulkhead::forward
