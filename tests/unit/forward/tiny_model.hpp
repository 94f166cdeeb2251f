// Small transformers with random weights for architectures that no fixture has: their files, and what they compute, in
// double and from the facts of their papers. This code shares nothing with the product and uses no kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/model/gguf_builder.hpp"

namespace bulkhead::forward::tiny {

using Vector = std::vector<double>;

// A layer's experts; count 0: its feed-forward is dense.
struct ExpertFacts {
  std::uint32_t count = 0, used = 2, width = 32;
  std::uint32_t shared_width = 0;  // of an expert that every token takes; 0: none
  bool gated_share =
      false;             // the shared expert's result is multiplied by a sigmoid of the token's own
  bool sigmoid = false;  // scores are sigmoids of the logits, not their softmax
  bool biased = false;   // a bias takes part in the choice
  const char* bias_name = "exp_probs_b.bias";
  // Neighbouring experts form groups. A token takes experts only from the groups whose two best experts have the
  // largest sums.
  std::uint32_t groups = 1, groups_used = 1;
  bool renormalise = false;
  double scale = 1;
  bool fused = false;  // gate and up are one tensor
  std::uint32_t dense_layers = 0;
  // If not empty, for each layer: the limit of the functions of the experts' gates, and of their ups; 0: none. The same
  // for the expert that every token takes.
  std::vector<double> limits = {}, shared_limits = {};
  std::uint32_t period = 0;  // layers 1, 1 + period, ... have experts; 0: all behind the dense ones
  // Entries of a latent vector that the experts read and write in place of the stream's norm and a branch; 0: none.
  std::uint32_t latent = 0;
};

// Attention over latent vectors, as in DeepSeek-V2; latent 0: none. `plain` entries of each head's query do not rotate,
// and Facts::size entries do.
struct LatentFacts {
  std::uint32_t latent = 0, plain = 0, value = 0;
  std::uint32_t q_rank = 0;  // of the queries' own latent vector; 0: they have none
  // The file has the matrices of keys and values as one tensor. `named`: it names the sizes of heads as files with two
  // tensors do.
  bool joined = false, named = true;
};

// YaRN; factor 0: none.
struct YarnFacts {
  double factor = 0;
  std::uint32_t original = 0;  // positions
  double attention = 1;        // another factor of cosines and sines
};

// Mamba-2; heads 0: no layer has it.
struct MambaFacts {
  std::uint32_t heads = 0, size = 0;    // entries of a head
  std::uint32_t groups = 1, state = 0;  // heads of a group share B and C, of `state` entries
  std::uint32_t taps = 4;
  bool norms = true;  // what is read of the state is normed
  std::uint32_t inner() const { return heads * size; }
  std::uint32_t channels() const { return inner() + 2 * groups * state; }
};

enum class Function { kSilu, kGelu, kSquaredRelu, kXielu };

// xIELU's numbers as a file has them, those of layer `layer`.
struct XieluFacts {
  double alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;
};
XieluFacts xielu_facts(std::uint32_t layer);

// What distinguishes architectures. Lengths are in entries.
struct Facts {
  std::string architecture;
  std::uint32_t layers = 2, width = 64, heads = 4, kv_heads = 2, size = 32, hidden = 96;
  std::uint32_t vocabulary = 96, context = 256;

  bool halves = true;        // entries i and i + half turn together; else 2i and 2i + 1
  std::uint32_t turned = 0;  // entries of a head that turn; 0: all
  bool turns = true;
  bool turns_windowed_only = false;
  double base = 10000;
  YarnFacts yarn = {};
  std::uint32_t window = 0;         // positions that a windowed layer sees
  double window_base = 0;           // of windowed layers; 0: the same
  std::uint32_t window_turned = 0;  // entries of a head that turn in windowed layers; 0: as many
  std::uint32_t divisors = 0;       // of the frequencies of other layers; 0: there are none
  std::function<bool(std::uint32_t layer)> windowed = [](std::uint32_t) { return false; };
  double temperature =
      0;  // q at position p is multiplied by 1 + temperature ln(1 + floor(p / span))
  std::uint32_t temperature_span = 1;
  double score_scale = 0;  // 0: 1 / sqrt(size)

  bool layer_norms = false;     // with biases
  bool product_biases = false;  // of attention's output and the feed-forward
  bool output_bias = false;     // of attention's output alone
  bool qkv_biases = false;
  bool norms_before = true, norms_after = false;
  bool norms_rows = false,
       norms_heads = false;        // of q and k: over all heads together, or each head
  bool norms_turned = false;       // heads are normed after their rotation
  bool plain_layer_norms = false;  // without biases
  bool parallel = false;           // the feed-forward reads the norm that attention reads
  bool gates_attention = false;    // sigmoids multiply attention's result
  bool gates_heads = false;        // one for each head of it
  bool norms_own_heads = false;    // with norms_heads: each head has gains of its own
  LatentFacts latents = {};
  MambaFacts mamba = {};
  std::uint32_t taps = 3;  // positions that a short convolution sees
  // Entries of a head of Kimi Delta Attention, which has as many heads.
  std::uint32_t delta_size = 0;
  // Each layer's mixer: 'a' attention, 'm' Mamba-2, 'b' both, 'c' a short convolution, 'd' Kimi Delta Attention, 'l'
  // only attention's last product, 'n' none, 'f' none, but a feed-forward. Empty: all attend.
  std::string mixers = {};
  // If not empty: key-value heads, and the width of the feed-forward, of each layer. 0: it has no feed-forward.
  std::vector<std::uint32_t> layer_kv_heads = {}, layer_hidden = {};
  std::vector<std::uint32_t> layer_heads = {};  // if not empty: heads of q of each layer
  bool one_branch = false;                      // layers have no feed-forward beside their mixer
  const char* feed_forward_norm = "ffn_norm";
  bool bare_norm = false;  // the file has the name of that norm's gain without an ending
  Function function = Function::kSilu;  // of the feed-forward
  bool gated = true, fused_gate = false;
  ExpertFacts experts = {};
  const char* last_norm = "output_norm";
  double embedding_scale = 1, residual_scale = 1, logit_divisor = 1;
  bool tied = false;
  bool logit_biases = false;

  bool norms_embeddings = false;     // before the first layer
  bool first_attends_plain = false;  // the first layer's attention has no norm before it

  // A model that reads a text in both directions. Unless norms_before is set, it is BERT's kind: norms follow what they
  // normalise, which is the stream with each branch added, and positions have a table unless they turn.
  bool encoder = false;
  // Entries between two dense layers that change the pooled embedding; 0: there are none.
  std::uint32_t dense = 0;
  bool fused_qkv = false;
  bool qkv_by_heads = false;  // the rows of that tensor are q, k and v of each head
  std::uint32_t pooling = 1;  // pooling_type: 1 mean, 2 first token, 3 last token

  // Appends the keys that the facts above don't stand for.
  std::function<void(model::testing::GgufBuilder&, const std::string& prefix)> add_keys = nullptr;
};

class Model {
 public:
  Model(const Facts& facts, unsigned seed);

  // Returns the bytes of a GGUF file.
  std::string file() const;
  // Returns the logits after the last token. Empty: a router had less than the gap that need_gap() asked for.
  Vector logits(std::span<const std::uint32_t> tokens);
  // Returns an encoder's embedding of a text, before it is divided by its length.
  Vector embedding(std::span<const std::uint32_t> tokens);
  // The least difference, in any router's scores so far, between the last expert chosen and the next.
  double least_gap() const { return least_gap_; }
  // From now on logits() ends at the first router with a smaller difference. Most random models have one.
  void need_gap(double gap) { needed_gap_ = gap; }

 private:
  struct Tensor {
    std::vector<std::uint64_t> ne;
    std::vector<float> values;
  };
  void add(const std::string& name, std::vector<std::uint64_t> ne, double mean, double deviation);
  void add_matrix(const std::string& name, std::uint64_t in, std::uint64_t out,
                  std::uint64_t slices = 1);
  void add_norm(const std::string& name, std::uint64_t width);
  void add_layer(std::uint32_t layer);
  bool is_bert() const { return facts_.encoder && !facts_.norms_before; }
  bool has_experts(std::uint32_t layer) const {
    const ExpertFacts& e = facts_.experts;
    return e.count != 0 && layer >= e.dense_layers && (e.period == 0 || layer % e.period == 1);
  }
  bool norms_before_attention(std::uint32_t layer) const {
    return facts_.norms_before && mixer(layer) != 'n' &&
           (layer != 0 || !facts_.first_attends_plain);
  }
  void add_encoder();
  std::vector<Vector> encoded(std::span<const std::uint32_t> tokens);
  std::vector<Vector> through_layers(std::span<const std::uint32_t> tokens);  // empty: as in logits()
  std::vector<Vector> embedded(std::span<const std::uint32_t> tokens) const;

  Vector product(const std::string& name, const Vector& in, std::size_t slice = 0) const;
  // Rows [first, first + count) of a slice of the matrix.
  Vector rows(const std::string& name, const Vector& in, std::size_t slice, std::size_t first,
              std::size_t count) const;
  Vector norm(const std::string& name, const Vector& in) const;
  void norm_part(const std::string& name, Vector& of, std::size_t first, std::size_t count,
                 std::size_t first_gain = 0) const;
  void turn(Vector& heads, std::size_t count, std::uint32_t position, bool windowed) const;
  char mixer(std::uint32_t layer) const {
    return facts_.mixers.empty() ? 'a' : facts_.mixers[layer];
  }
  std::uint32_t kv_heads(std::uint32_t layer) const {
    return facts_.layer_kv_heads.empty() ? facts_.kv_heads : facts_.layer_kv_heads[layer];
  }
  std::uint32_t heads(std::uint32_t layer) const {
    return facts_.layer_heads.empty() ? facts_.heads : facts_.layer_heads[layer];
  }
  std::uint32_t hidden(std::uint32_t layer) const {
    return facts_.layer_hidden.empty() ? facts_.hidden : facts_.layer_hidden[layer];
  }
  void add_attention(std::uint32_t layer);
  void add_mamba(const std::string& block);
  void add_convolution(const std::string& block);
  void add_delta(const std::string& block);
  std::vector<Vector> delta(std::uint32_t layer, const std::vector<Vector>& in) const;
  void add_keys_of_mixers(model::testing::GgufBuilder& made, const std::string& prefix) const;
  void add_feed_forward(std::uint32_t layer);
  std::vector<Vector> mamba(std::uint32_t layer, const std::vector<Vector>& in) const;
  Vector mamba_read(const std::string& block, const std::vector<Vector>& rows, std::size_t position,
                    Vector& state) const;
  std::vector<Vector> convolved(std::uint32_t layer, const std::vector<Vector>& in) const;
  std::vector<Vector> mixed(std::uint32_t layer, const std::vector<Vector>& in);
  std::vector<Vector> attention(std::uint32_t layer, const std::vector<Vector>& in) const;
  void add_latents(const std::string& block);
  void add_keys_of_latents(model::testing::GgufBuilder& made, const std::string& prefix) const;
  Vector scores_of_latents(const std::string& block, std::size_t head, const Vector& plain_q,
                           const std::vector<Vector>& latents) const;
  Vector value_of_latents(const std::string& block, std::size_t head,
                          const std::vector<Vector>& latents, const Vector& weights) const;
  std::vector<Vector> latent_attention(std::uint32_t layer, const std::vector<Vector>& in) const;
  Vector attended(const Vector& q, const std::vector<Vector>& keys,
                  const std::vector<Vector>& values, std::uint32_t layer,
                  std::size_t position) const;
  Vector feed_forward(std::uint32_t layer, const Vector& in);
  Vector gated(const std::string& block, const std::string& ending, const Vector& in,
               std::size_t slice, bool fused) const;
  double activated_in(const std::string& block, double x) const;
  double limit_of(const std::string& block, const std::string& ending) const;
  void enlarge_limited(const std::string& block);
  Vector experts(const std::string& block, const Vector& in);
  void leave_out_groups(Vector& chosen_by);

  const Facts& facts_;
  unsigned seed_;
  std::map<std::string, Tensor> tensors_;
  double least_gap_ = 1e9, needed_gap_ = 0;
};

}  // namespace bulkhead::forward::tiny
