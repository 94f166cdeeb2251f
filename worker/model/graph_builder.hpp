// The tools with which an architecture's file is written: they read the file's keys, check its tensors and build the
// graph.
//
// The builder keeps the first error, and everything after it is harmless. So a description needs no check on every
// line: see status().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::model {

// Far above any real model; they keep the product of any two within 64 bits.
inline constexpr std::uint64_t kMaxLayers = 1'024;
inline constexpr std::uint64_t kMaxWidth = 1U << 20;
inline constexpr std::uint64_t kMaxHeads = 4'096;
inline constexpr std::uint64_t kMaxHeadSize = 1'024;
inline constexpr std::uint64_t kMaxContext = 1U << 30;
inline constexpr std::uint64_t kMaxVocabulary = 1U << 22;
inline constexpr std::uint64_t kMaxExperts = 512;
inline constexpr std::uint64_t kMaxUsedExperts = 32;
inline constexpr std::uint64_t kMaxExpertGroups = 32;
inline constexpr std::uint64_t kMaxTaps = 16;
inline constexpr std::uint64_t kMaxDeltaSize = 512;

class LayerBuilder;

// Returns heads of which no layer has more. The layers that attend have heads of one size.
HeadShape widest_of(const std::vector<HeadShape>& layers);

// Which layer of each period of layers with windows sees everything.
enum class FullLayer : std::uint8_t { kFirst, kLast };

// The parameters that the layers' feed-forwards share. The leading layers are dense. The others have experts, plus a
// shared expert that all columns use.
struct FeedForwards {
  ActivationIndex dense_hidden = kAbsent, shared_hidden = kAbsent, shared = kAbsent;
  std::optional<Router> router;
  std::uint32_t dense_layers = 0;
  std::uint32_t expert_width = 0;
  std::uint32_t shared_width = 0;  // 0: no shared expert
  // The functions of each layer's experts, and of its dense feed-forward or shared expert. Empty: SiLU.
  std::vector<Gate> expert_functions, functions;
  // The tensor whose product with the norm says how much of the shared expert's result a column uses; empty: all of
  // it.
  std::string shared_gate;
};

// A dense feed-forward with a gate, whose products may have biases (GraphBuilder::dense_feed_forward).
struct DenseFeedForward {
  ActivationIndex hidden = kAbsent;
  ActivationIndex up = kAbsent;  // ups with their biases; kAbsent: gates and ups have none
};

// Attention of query heads in groups, each with a KV head, as most architectures have it: what the layers share.
struct GroupedAttention {
  HeadShape heads;
  float epsilon = 0;  // of all norms
  RopeIndex rope = kAbsent;
  ScoreRules rules;
  ActivationIndex normed = kAbsent;  // the normalised stream, which feed-forwards read, too
  ActivationIndex qkv = kAbsent, attended = kAbsent;
};

// The shared parameters of those parts of Qwen 3.5's layers in which columns read other columns: gated delta nets,
// and gated attention in the layers between them (GraphBuilder::delta_mixers).
struct DeltaMixers {
  HeadShape heads;  // of attention
  DeltaHeads delta;
  float epsilon = 0;  // of all norms
  RopeIndex rope = kAbsent;
  std::vector<bool> recurrent;       // for each layer: whether it is a delta net
  ActivationIndex normed = kAbsent;  // the normalised stream, which feed-forwards read, too
  ActivationIndex qkvg = kAbsent, plain = kAbsent, attended = kAbsent;  // gated attention's
  ActivationIndex mixed = kAbsent, read = kAbsent;                      // a delta net's
};

class GraphBuilder {
 public:
  // `has` says which optional tensors an imagined model has; null: `file` has the tensors.
  using Has = std::function<bool(const std::string&)>;
  // What the graph becomes: the model, or the first block behind its layers, which drafts tokens (graph_draft.cpp).
  enum class Part : std::uint8_t { kModel, kDraftingBlock };
  GraphBuilder(const GgufFile& file, const Architecture& architecture, Has has = nullptr,
               Part part = Part::kModel);

  // Hyperparameters, by their names without the architecture's prefix. count() returns a count within [1, limit]. If
  // the key is absent it returns `fallback`, or an error if there is none. A 0 counts as absent: llama.cpp, when it
  // saves a model, writes all keys that it knows, and 0 for those that the model doesn't have. The key may hold an
  // array of one count for each layer; then all must be equal.
  std::uint32_t count(std::string_view name, std::uint64_t limit,
                      std::optional<std::uint64_t> fallback = std::nullopt);
  double number(std::string_view name, double fallback);
  // The same, but 0 counts as absent, and a number that is not between 0 and a million is an error.
  double positive(std::string_view name, double fallback);
  // Returns the factor of attention's scores that the key attention.scale has; 0: the usual one.
  double score_scale();
  // Returns a count for each layer: an array's elements, of which there must be enough, or one count for all layers.
  // Bools count as 0 and 1.
  std::vector<std::uint32_t> counts(std::string_view name, std::uint64_t limit,
                                    std::optional<std::uint64_t> fallback = std::nullopt);
  // Returns a number for each layer, between -1000000 and 1000000, from a key with one for all layers or an array. The
  // key has its prefix.
  std::vector<double> numbers_of_layers(const std::string& key,
                                        std::optional<double> fallback = std::nullopt);
  std::string text(std::string_view name, std::string_view fallback);
  bool flag(std::string_view name, bool fallback);
  bool has_key(std::string_view name) const;
  // Returns whether the file has the key with a number other than 0.
  bool has_count(std::string_view name) const;

  // Parameters that nearly every architecture has.
  std::uint32_t embedding() const { return graph_.embedding; }
  std::uint32_t layer_count() const { return layers_; }
  // Returns the numbers of the layers to describe: those of the model, or only that of the block that drafts tokens.
  auto layers() const { return std::views::iota(first_layer_, layers_); }
  std::uint32_t context() const { return graph_.context; }
  std::uint32_t feed_forward() { return count("feed_forward_length", kMaxWidth); }
  HeadShape heads();
  // Returns the heads of a model of which only some layers attend. attention.head_count_kv then has a number for each
  // layer; 0: that layer does not attend. `attends` gets an element for each layer.
  HeadShape heads_of_some(std::vector<bool>& attends);
  // Returns the heads of each layer: the keys attention.head_count and attention.head_count_kv may have a number for
  // each. A layer without key-value heads does not attend.
  std::vector<HeadShape> heads_of_layers();
  float rms_epsilon() { return epsilon("attention.layer_norm_rms_epsilon"); }
  float layer_epsilon() { return epsilon("attention.layer_norm_epsilon"); }
  // Returns the counts of experts and of those that a column uses; nothing for a dense model.
  std::optional<Router> router();
  // Reads the same counts for an architecture that must have experts: a model without them is corrupt. The counts are
  // at least 1.
  Router required_router();
  // Returns the width of an expert's hidden layer. Files that don't say it have the width of all experts of a token
  // together in feed_forward_length.
  std::uint32_t expert_feed_forward(const Router& router);
  // The same as router() for routers that may weigh by sigmoids (expert_gating_func) and choose within groups.
  // `sigmoid` is the default if the file doesn't say.
  std::optional<Router> scored_router(bool sigmoid);
  // Feed-forwards like DeepSeek's: leading dense ones, then experts beside one that all columns use.
  FeedForwards feed_forwards(bool sigmoid);
  // Returns the same kind of feed-forwards for files without the keys for dense layers and shared experts: a layer
  // without a router is dense, and the tensors show whether an expert is shared.
  FeedForwards feed_forwards_by_tensors();
  // Layers of that width share the feed-forward's activations.
  DenseFeedForward dense_feed_forward(std::uint32_t width);
  // Gives `made` a shared expert with a hidden layer of that width; 0: none.
  void add_shared_expert(FeedForwards& made, std::uint32_t width, std::string gate = "");
  // Reads the keys ssm.* of gated delta nets.
  DeltaHeads delta_heads();
  // Reads the keys ssm.* of Mamba-2.
  DeltaHeads mamba_heads();
  // Returns for each layer whether it is a gated delta net, by the keys attention.recurrent_layers or
  // full_attention_interval.
  std::vector<bool> recurrent_layers();
  DeltaMixers delta_mixers();
  // Reads the keys of heads, of the epsilon of RMS norms and of the rotation.
  GroupedAttention grouped_attention(RopePairing pairing);
  // Reads the epsilon and the rotation, for heads that the caller has read.
  GroupedAttention grouped_attention(const HeadShape& heads, RopePairing pairing);
  // Describes a whole model of Qwen3-Next's kind, from the embedding to the output. Each layer has one of `mixers`,
  // then experts whose weights add up to one, plus a shared expert with a gate.
  void delta_mixers_with_experts(const DeltaMixers& mixers);
  // Returns the rotation that the keys rope.* describe, for heads of that size: plain, or stretched by a factor, by
  // Llama 3's factors, by YaRN (Peng et al. 2023, arXiv 2309.00071) or by LongRoPE.
  RopeIndex rope(const HeadShape& heads, RopePairing pairing);
  // Returns a rotation like rope(), but of only the first half of the entries that the keys name.
  RopeIndex half_rope(const HeadShape& heads, RopePairing pairing);
  // The rotation of layers with a sliding window: it has its own base (rope.freq_base_swa) and no stretching. `base`
  // is the default if the file has none. As many entries turn as in the other layers, unless the file has a number
  // (rope.dimension_count_swa).
  RopeIndex window_rope(const HeadShape& heads, RopePairing pairing, double base = 10'000.0);
  // Returns the base of the other layers' frequencies.
  double rope_base() { return number("rope.freq_base", 10'000.0); }
  // The same as rope(), for architectures whose files have tables of factors for short and for long contexts
  // (rope_factors_short.weight and rope_factors_long.weight) without naming LongRoPE (Ding et al. 2024, arXiv
  // 2402.13753) as the kind of scaling.
  RopeIndex long_rope(const HeadShape& heads, RopePairing pairing);
  // Returns whether the file comes from a vision model, whose heads have sections (rope.dimension_sections) that
  // rotate by time, height and width. In a text all three are equal, so a text's positions rotate halves of heads.
  bool has_rope_sections();
  // Returns the factor of the scores if the file has YaRN with rope.scaling.yarn_log_multiplier, as DeepSeek's files
  // do; the rotation's cosines and sines then have no factor. Otherwise 1.
  double score_growth(RopeIndex rope);
  RopeIndex add(Rope rope);
  KvIndex add(KvStore store);
  StateIndex add(StateStore store);

  // Activations.
  ActivationIndex input(std::string name, std::uint64_t width, std::uint32_t per_column = 1);
  ActivationIndex floats(std::string name, std::uint64_t width, std::uint32_t per_column = 1);
  // The same as input() and floats(), but layers that ask for one name and width share it.
  ActivationIndex shared_input(const std::string& name, std::uint32_t width) {
    return shared(name, width, Activation::Form::kInput);
  }
  ActivationIndex shared_floats(const std::string& name, std::uint32_t width) {
    return shared(name, width, Activation::Form::kFloats);
  }

  // Tensors of the whole model. `scale` multiplies the token's row. For a block that drafts tokens, its first product
  // follows.
  void embed(float scale = 1);
  // Adds another row for each token, from a matrix with that name.
  void lookup(const std::string& name, ActivationIndex out, float scale);
  // The norm and matrix of the logits, which are divided by `divisor`. Without output.weight the embedding's matrix
  // is used. `gain` is the norm's tensor.
  void output(float epsilon, float divisor = 1, const std::string& gain = "output_norm");
  // The same with a layer norm.
  void centred_output(float epsilon);
  // The same with a layer norm that has no bias.
  void plain_centred_output(float epsilon, float divisor = 1);
  // The hidden states are the stream itself, without a norm.
  void plain_output();
  // Adds the biases output.bias to the logits, if the file has them. Call it behind output().
  void bias_logits();
  // Limits the logits to the cap in that key; without the key to `fallback`; 0: no cap.
  void cap_logits(std::string_view name, double fallback = 0);
  float cap(std::string_view name, double fallback = 0);
  void rank_as(const RankForm& form) { graph_.ranking = form; }
  // Returns the number of positions of a sliding window, at most kMaxContext. A window of the whole context hides
  // nothing, so attention() leaves it out. Its layers are windowed all the same: their rotations may have other
  // frequencies than those of layers without a window.
  std::uint32_t window(std::optional<std::uint64_t> fallback = std::nullopt);
  // Returns for each layer whether it sees only a window. attention.sliding_window_pattern has a boolean for each
  // layer, or a period, of which one layer sees everything. `period` is the default if the file has neither.
  std::vector<bool> windowed_layers(std::uint32_t period, FullLayer full = FullLayer::kLast);

  LayerBuilder layer(std::uint32_t index);

  // Records what an architecture does not support, in words: "has ...".
  void refuse(const std::string& why);
  // Records what is broken in the file.
  void corrupt(const std::string& what);

  // A tensor that must be there, with exactly this shape.
  TensorIndex tensor(const std::string& name, std::uint64_t width, std::uint64_t rows = 1,
                     std::uint64_t slices = 1);
  // The same, or kAbsent if the file has no tensor with that name.
  TensorIndex optional_tensor(const std::string& name, std::uint64_t width, std::uint64_t rows = 1,
                              std::uint64_t slices = 1);
  // Says that a tensor, if the file has it, changes nothing. Any other tensor that no operation reads is refused.
  void leave_unused(const std::string& name) { used_tensors_.insert(name); }
  bool has_tensor(const std::string& name) const;
  // Returns whether some layer has a tensor with that name (without "blk.N.").
  bool some_layer_has(const std::string& name) const;
  // Returns whether a bias takes part in some layer's choice of experts.
  bool some_choice_is_biased() const;
  VectorIndex add(VectorRow row);
  // The same for a matrix from which a vector is made: it must be of floats.
  TensorIndex float_rows(const std::string& name, std::uint64_t width, std::uint64_t rows,
                         std::uint64_t slices = 1);
  const GgufFile& file() const { return file_; }

  const Status& status() const { return status_; }
  // Call it last: it also checks for tensors that were left over.
  Result<ModelGraph> finish();

 private:
  friend class LayerBuilder;
  void fail(Error error);
  bool drafts() const { return part_ == Part::kDraftingBlock; }
  void choose_block(std::uint32_t drafting);
  // Returns the name of a tensor of the block that drafts tokens, or `other` if the file lacks it.
  std::string drafting_name(const std::string& name, const std::string& other) const;
  void join_hidden_states(const std::string& embedding, float scale);
  HeadShape heads_with(std::uint32_t heads, std::uint32_t kv_heads);
  ActivationIndex shared(const std::string& name, std::uint32_t width, Activation::Form form);
  DeltaHeads state_heads();
  float epsilon(std::string_view name);
  std::string key(std::string_view name) const { return prefix_ + "." + std::string(name); }
  void read_names();
  Result<std::optional<std::uint64_t>> same_in_all_layers(std::string_view name) const;
  std::vector<double> factors(const std::string& name, std::uint32_t pairs);
  // Returns how many dimensions rotate, and the base of their frequencies, by keys with this ending.
  std::pair<std::uint32_t, double> rope_size(const HeadShape& heads, const std::string& ending = "",
                                             double usual_base = 10'000.0);
  // Returns the rotation of so many entries. If there are divisors in rope_freqs.weight, the first of that many are
  // used.
  RopeIndex rope(std::uint32_t dimensions, double base, std::uint32_t divisors,
                 RopePairing pairing);
  double scaling_factor();
  // Returns a further factor of cosines and sines.
  double attention_factor();
  // Returns YaRN's factor of cosines and sines. A file may have a number in place of the usual one. A 1 does not
  // count, because programs that do not know this factor write it.
  double yarn_magnitude(double usual);
  void stretch_by_yarn(Rope& rope, double base);
  std::optional<Router> any_router();
  TensorIndex require(TensorRow row);
  const TensorInfo* find(const std::string& name) const;
  void check(const std::string& name, const TensorInfo& found, const TensorRow& row);
  Status refuse_other_computations() const;
  Status refuse_other_numbers() const;
  Status refuse_other_tensors() const;
  Status cap_context();
  Status check_operations() const;
  Error refused_tensor(std::string_view name) const;
  Error refused_key(std::string_view name) const;
  Error unsupported(const std::string& what) const;
  Error damaged(const std::string& what) const;

  const GgufFile& file_;
  const Architecture& architecture_;
  const Has has_;
  const Part part_;
  std::string prefix_;
  std::uint32_t first_layer_ = 0, layers_ = 1;
  ModelGraph graph_;
  mutable std::set<std::string, std::less<>> read_keys_;
  std::set<std::string, std::less<>> used_tensors_;
  Status status_;
};

// One layer: each call appends an operation. Names are the tensors' names without "blk.N." and ".weight".
class LayerBuilder {
 public:
  LayerBuilder(GraphBuilder& model, std::uint32_t index);

  void norm(ActivationIndex in, const std::string& gain, ActivationIndex out, float epsilon);
  // A layer norm, whose tensors are NAME.weight and NAME.bias.
  void layer_norm(ActivationIndex in, const std::string& name, ActivationIndex out, float epsilon);
  // A layer norm without a bias.
  void plain_layer_norm(ActivationIndex in, const std::string& gain, ActivationIndex out,
                        float epsilon);
  // Adds the norm of `in` to `out`.
  void norm_added(ActivationIndex in, const std::string& gain, ActivationIndex out, float epsilon);
  // Normalises `width` entries of each column from `first` on in place.
  void norm_within(ActivationIndex in, std::uint32_t first, std::uint32_t width,
                   const std::string& gain, float epsilon);
  void copy(ActivationIndex in, ActivationIndex out);

  // Returns rows of a matrix that reads activations of `width` entries.
  MatrixPart rows(const std::string& name, std::uint64_t width, std::uint64_t rows);
  // The rows of each slice of a tensor.
  MatrixPart slices(const std::string& name, std::uint64_t width, std::uint64_t rows,
                    std::uint64_t slices);
  // The same as rows() for q and k, whose rows rotate.
  MatrixPart rotating_rows(const std::string& name, std::uint64_t width, std::uint64_t rows);
  // Returns q, k and v, from one tensor or three, in that order, as the operations' parts.
  std::vector<MatrixPart> qkv(const HeadShape& heads, std::uint64_t width);
  std::vector<MatrixPart> fused_qkv(const std::string& name, const HeadShape& heads,
                                    std::uint64_t width);
  void product(std::vector<MatrixPart> parts, ActivationIndex in, ActivationIndex out,
               VectorIndex bias = kAbsent);
  void product_added(MatrixPart part, ActivationIndex in, ActivationIndex out,
                     VectorIndex bias = kAbsent);

  // Returns attn_q.bias, attn_k.bias, attn_v.bias: all three or none.
  VectorIndex qkv_bias(const HeadShape& heads);
  // Returns the biases of fused_qkv() in one tensor; kAbsent: the file has none.
  VectorIndex fused_qkv_bias(const std::string& name, const HeadShape& heads);
  VectorIndex vector(const std::string& name, std::uint64_t width);
  // The same, or kAbsent if the file has none.
  VectorIndex optional_vector(const std::string& name, std::uint64_t width);
  VectorIndex bias(const std::string& name, std::uint64_t width);
  VectorIndex optional_bias(const std::string& name, std::uint64_t width);
  // Sets attn_q_norm and attn_k_norm as the gains of each head, if the file has them: both or none.
  void add_head_gains(Rotate& rotate, std::uint32_t size);
  // attn_sinks, for ScoreRules.
  VectorIndex sinks(const HeadShape& heads);

  // Appends both operations on rotate.kv; if that is absent, on a key-value store of the layer's own. Returns the
  // store.
  KvIndex attention(Rotate rotate, ActivationIndex out, ScoreRules rules = {});

  // The first part of grouped attention: the norm attn_norm, and q, k and v.
  void project(const GroupedAttention& shape);
  // The second part of grouped attention: the product attn_output adds the result of attention to the stream. `rotate`
  // has the biases and gains, which `shape` lacks.
  void attend(const GroupedAttention& shape, Rotate rotate = {});
  // Returns the floats of `qkvg` below: q, k, v and a gate for each entry of q.
  static std::uint32_t gated_qkv_width(const HeadShape& heads) {
    return heads.qkv_width() + heads.query_width();
  }
  // Attention with output gates. The layer multiplies each entry of attention's result by the sigmoid of that entry's
  // gate. The tensor attn_q holds the rows of q and of the gates: for each head its q, then its gates. `qkvg`:
  // floats, gated_qkv_width() wide. `plain`: floats, as wide as q, for the result before the gates.
  void gated_attention(const HeadShape& heads, RopeIndex rope, float epsilon, ActivationIndex in,
                       ActivationIndex qkvg, ActivationIndex plain, ActivationIndex out);
  // A gated delta net with the tensors attn_qkv and attn_gate (or ssm_in), ssm_*. `mixed`: floats,
  // DeltaHeads::mixed_width() wide.
  void delta_net(const DeltaHeads& heads, float epsilon, ActivationIndex in, ActivationIndex mixed,
                 ActivationIndex out);
  // Mamba-2 with the tensors ssm_*, but ssm_out, nor ssm_norm if the heads have no norms.
  void mamba(const DeltaHeads& heads, float epsilon, ActivationIndex in, ActivationIndex mixed,
             ActivationIndex out);
  // Adds the layer's first half: the norm attn_norm, then a delta net or gated attention, whose result is added to
  // the stream.
  void mix(const DeltaMixers& shape);

  // Appends a gated product whose gate and up rows are in one tensor, the gate's first.
  void fused_gated_product(const std::string& gate_and_up, ActivationIndex in, ActivationIndex out,
                           Gate function);
  void gated_product(const std::string& gate, const std::string& up, ActivationIndex in,
                     ActivationIndex out, Gate function);

  // function(product + bias): the first half of a feed-forward in a model without gates.
  void activated_product(const std::string& name, ActivationIndex in, ActivationIndex out,
                         Gate function);

  // The experts of ffn_{gate,up,down}_exps, or of one tensor each (ffn_gate.E); the router is ffn_gate_inp. `norm` is
  // the gain of the norm whose result is `in`.
  Experts experts(Router router, const std::string& norm, float epsilon, ActivationIndex in,
                  std::uint32_t width);
  // The same without gates: the function is applied to the ups. ffn_{up,down}_exps. Results are as wide as `in`, which
  // may also be made of the norm's result. An empty `norm`: the router reads the stream as it is.
  Experts ungated_experts(Router router, const std::string& norm, float epsilon, ActivationIndex in,
                          std::uint32_t width, Gate function);
  // Sets the tensors of the experts' gates and ups: ffn_gate_up_exps, which holds both, or one tensor each.
  void add_gates_and_ups(Experts& experts, std::uint64_t embedding);
  // Adds experts as experts() does, with the shared expert of `shape` before them.
  Experts experts_beside_shared(const FeedForwards& shape, const std::string& norm, float epsilon,
                                ActivationIndex in);
  // Adds the layer's feed-forward to the stream, or writes it to another `out`. `norm` is the gain of the norm whose
  // result is `in`.
  void feed_forward(const FeedForwards& shape, const std::string& norm, float epsilon,
                    ActivationIndex in, ActivationIndex out = kStream);
  // Adds a dense feed-forward, with those biases that the file has, to the stream.
  void feed_forward(const DenseFeedForward& shape, ActivationIndex in);
  // Adds biases of the router and of all experts' products.
  void add_biases(Experts& experts);
  void append(Operation operation) { operations().push_back(std::move(operation)); }

  std::uint32_t index() const { return index_; }
  std::string name(const std::string& tensor) const { return block_ + tensor; }

 private:
  void share(Experts& experts, const FeedForwards& shape);
  Experts experts_without_products(Router router, const std::string& norm, float epsilon,
                                   ActivationIndex in, std::uint32_t width);
  void add_choice_bias(Router& router);
  std::vector<MatrixPart> delta_rows(const DeltaHeads& heads, std::uint64_t width);
  std::vector<MatrixPart> expert_rows(const std::string& name, std::uint64_t width,
                                      std::uint64_t rows, std::uint32_t experts);
  std::vector<Operation>& operations() const {
    return model_.graph_.layers[index_ - model_.first_layer_].operations;
  }
  std::uint32_t width(ActivationIndex activation) const {
    return model_.graph_.activations[activation].width;
  }

  GraphBuilder& model_;
  const std::uint32_t index_;
  const std::string block_;
};

}  // namespace bulkhead::model
