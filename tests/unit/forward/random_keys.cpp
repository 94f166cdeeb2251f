#include "random_keys.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace bulkhead::forward {
namespace {

using model::ValueType;
using model::testing::GgufBuilder;

class Keys {
 public:
  Keys(const std::string& architecture, Draw& draw, GgufBuilder& file)
      : architecture_(architecture), draw_(draw), file_(file) {}

  RandomKeys add() {
    file_.text("general.architecture", architecture_);
    made_.layers = 1 + draw_.below(4);
    if (is({"gemma4"})) made_.layers = 2 + draw_.below(4);
    number("block_count", made_.layers);
    made_.context = draw_.of({96U, 100U, 160U, 257U});
    number("context_length", made_.context);
    add_widths();
    add_heads();
    add_rotation();
    add_windows();
    add_experts();
    add_scales();
    add_states();
    if (is({"bert", "nomic-bert", "gemma-embedding", "modern-bert", "eurobert", "llama-embed",
            "neo-bert", "jina-bert-v3", "nomic-bert-moe"}))
      add_encoder();
    if (is({"llama", "qwen2", "qwen3"}) && draw_.one_in(6)) flag("attention.causal", false);
    if (is({"apertus"})) add_xielu();
    return made_;
  }

 private:
  bool is(std::initializer_list<std::string_view> names) const {
    return std::ranges::find(names, architecture_) != names.end();
  }
  bool chooses_by_scores() const {
    return is({"deepseek2", "dots1", "bailingmoe2", "glm4moe", "ernie4_5-moe", "hunyuan-moe",
               "minimax-m2", "lfm2moe", "nemotron_h_moe", "exaone-moe", "hy_v3", "step35",
               "kimi-linear", "afmoe", "mistral4"});
  }
  bool has_rotating_latents() const { return is({"deepseek2", "mistral4"}); }
  bool has_states() const {
    return is({"qwen35", "qwen35moe", "qwen3next", "granitehybrid", "nemotron_h", "nemotron_h_moe",
               "lfm2", "lfm2moe", "falcon-h1", "kimi-linear"});
  }
  std::string key(const char* name) const { return architecture_ + "." + name; }
  void say(const char* name, const std::string& value) {
    made_.description += std::string(name) + " " + value + ", ";
  }
  void number(const char* name, std::uint32_t value) {
    file_.u32(key(name), value);
    say(name, std::to_string(value));
  }
  void real(const char* name, double value) {
    file_.f32(key(name), static_cast<float>(value));
    say(name, std::to_string(value));
  }
  void flag(const char* name, bool value) {
    file_.boolean(key(name), value);
    say(name, value ? "true" : "false");
  }
  void numbers(const char* name, const std::vector<std::int32_t>& values) {
    file_.numbers(key(name), ValueType::kInt32, values);
    std::string all;
    for (const std::int32_t each : values)
      all += std::to_string(each) + " ";
    say(name, all);
  }

  void add_widths() {
    // A router takes entries in groups of four.
    const bool dense =
        !is({"qwen2moe", "qwen3moe", "qwen3vlmoe", "olmoe", "gpt-oss", "granitemoe", "qwen35moe",
             "qwen3next", "llama", "granitehybrid", "gemma4", "mellum", "nomic-bert-moe"}) &&
        !chooses_by_scores();
    embedding_ =
        draw_.of({32U, 64U, 68U, 96U, 100U, 128U, 132U, 160U, 256U, 256U, 260U, 288U, 512U});
    if (dense && draw_.one_in(4)) embedding_ = draw_.of({33U, 50U, 65U, 97U, 255U, 258U});
    number("embedding_length", embedding_);
    hidden_ = draw_.of({1U, 31U, 32U, 33U, 64U, 96U, 100U, 130U, 256U, 256U, 320U, 512U});
    made_.vocabulary = draw_.of({2U, 31U, 33U, 64U, 65U, 97U, 100U, 129U, 257U, 300U, 513U, 2049U});
    number("vocab_size", made_.vocabulary);
    real("attention.layer_norm_rms_epsilon", 1e-5);
    real("attention.layer_norm_epsilon", 1e-5);
    if (!is({"nemotron_h", "nemotron_h_moe", "gemma4", "deci"}))
      number("feed_forward_length", hidden_);
    if (is({"gemma4", "deci"})) {
      std::vector<std::int32_t> widths;
      for (std::uint32_t i = 0; i < made_.layers; ++i)
        widths.push_back(static_cast<std::int32_t>(draw_.of({32U, 33U, 96U, 256U})));
      if (is({"deci"})) widths[draw_.below(made_.layers)] = 0;
      numbers("feed_forward_length", widths);
    }
  }

  std::uint32_t head_size() {
    return draw_.of({2U,  8U,  10U,  16U,  32U,  33U,  36U,  48U,  64U,  64U,  72U,  80U,
                     96U, 99U, 100U, 112U, 128U, 128U, 144U, 192U, 256U, 260U, 320U, 512U});
  }

  void add_heads() {
    kv_heads_ = draw_.of({1U, 1U, 2U, 3U, 4U, 5U, 7U});
    heads_ = kv_heads_ * draw_.of({1U, 1U, 2U, 3U, 4U, 5U, 7U, 8U, 16U});
    while (heads_ > 40)
      heads_ -= kv_heads_;
    heads_ = std::max(heads_ / kv_heads_, 1U) * kv_heads_;
    size_ = head_size();
    while (heads_ * size_ > 4096)
      size_ = head_size();
    if (is({"neo-bert"})) kv_heads_ = heads_;
    if (is({"deci", "step35"})) return add_heads_of_layers();
    number("attention.head_count", heads_);
    if (has_rotating_latents() || is({"kimi-linear"})) return add_latents();
    if (is({"gemma4"})) return add_heads_of_two_kinds();
    number("attention.key_length", size_);
    number("attention.value_length", size_);
    if (!is({"granitehybrid", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe"}))
      number("attention.head_count_kv", kv_heads_);
  }

  void add_latents() {
    const std::uint32_t latent = draw_.of({8U, 20U, 32U, 33U, 64U, 100U, 128U, 256U}),
                        turning = draw_.of({2U, 6U, 8U, 16U, 32U, 64U});
    number("attention.kv_lora_rank", latent);
    if (draw_.one_in(2)) number("attention.q_lora_rank", draw_.of({16U, 33U, 64U, 96U, 256U}));
    const std::uint32_t key = turning + draw_.of({1U, 16U, 30U, 32U, 64U, 128U}),
                        value = draw_.of({8U, 30U, 32U, 64U, 128U});
    // Older files name the sizes of heads alone, and have as many heads of keys.
    const bool older = has_rotating_latents() && draw_.one_in(3);
    if (!older) {
      number("attention.key_length_mla", key);
      number("attention.value_length_mla", value);
    }
    if (has_rotating_latents()) number("attention.head_count_kv", older ? heads_ : 1);
    number("attention.key_length", older ? key : latent + turning);
    number("attention.value_length", older ? value : latent);
    number("rope.dimension_count", turning);
  }

  // Layers have different numbers of heads. Of deci's, all but the first may have a product in place of attention, or
  // nothing.
  void add_heads_of_layers() {
    std::vector<std::int32_t> heads(made_.layers, static_cast<std::int32_t>(heads_)), kv_heads;
    for (std::uint32_t i = 0; i < made_.layers; ++i) {
      const std::uint32_t kind = i == 0 || is({"step35"}) ? draw_.below(2) : draw_.below(4);
      if (kind == 2) heads[i] = 0;
      if (kind == 0)
        heads[i] = static_cast<std::int32_t>(kv_heads_ * (1 + draw_.below(heads_ / kv_heads_)));
      kv_heads.push_back(static_cast<std::int32_t>(kind > 1 ? 0 : kind == 1 ? heads_ : kv_heads_));
    }
    numbers("attention.head_count", heads);
    numbers("attention.head_count_kv", kv_heads);
    number("attention.key_length", size_);
    number("attention.value_length", size_);
  }

  void add_heads_of_two_kinds() {
    sliding_size_ = head_size();
    while (heads_ * sliding_size_ > 4096 || sliding_size_ % 2 != 0)
      sliding_size_ = head_size();
    size_ += size_ % 2;
    number("attention.key_length", size_);
    number("attention.value_length", size_);
    number("attention.key_length_swa", sliding_size_);
    number("attention.value_length_swa", sliding_size_);
    for (std::uint32_t i = 0; i < made_.layers; ++i)
      slides_.push_back(draw_.one_in(2) ? 1 : 0);
    if (draw_.one_in(3) && made_.layers > 2) {
      slides_[0] = 1;
      slides_[1] = 0;
      number("attention.shared_kv_layers", made_.layers - 2);
    }
    std::vector<std::int32_t> each;
    for (const std::int32_t slides : slides_)
      each.push_back(
          static_cast<std::int32_t>(slides != 0 && heads_ % 2 == 0 ? heads_ / 2 : kv_heads_));
    numbers("attention.head_count_kv", each);
  }

  void add_rotation() {
    if (is({"kimi-linear"})) return;  // nothing rotates
    real("rope.freq_base", draw_.of({500.0, 10000.0, 1e6}));
    // An odd number of entries can't turn.
    if (!has_rotating_latents()) {
      const std::uint32_t even = size_ / 2 * 2;
      const std::uint32_t turning =
          draw_.one_in(2) || even < 4 ? even : 2 * (1 + draw_.below(even / 2));
      if (turning != size_ || draw_.one_in(2)) number("rope.dimension_count", turning);
      if (size_ % 2 != 0 &&
          is({"gemma3", "olmo2", "gemma-embedding", "mellum", "modern-bert", "step35"}))
        number("rope.dimension_count_swa", even);
    }
    if (is({"phi3"}) || (!is({"step35"}) && draw_.one_in(6))) return add_long_rotation();
    switch (draw_.below(4)) {
      case 0:
        real("rope.scaling.factor", draw_.of({2.0, 4.0, 1.5}));
        file_.text(key("rope.scaling.type"), "linear");
        break;
      case 1:
        real("rope.scaling.factor", draw_.of({2.0, 4.0, 40.0}));
        file_.text(key("rope.scaling.type"), "yarn");
        say("rope.scaling.type", "yarn");
        number("rope.scaling.original_context_length", draw_.of({16U, 32U, 4096U}));
        if (has_rotating_latents() && draw_.one_in(2))
          real("rope.scaling.yarn_log_multiplier", 0.1);
        break;
      default:
        break;
    }
  }

  void add_long_rotation() {
    if (!is({"phi3"}) || draw_.one_in(2)) {
      file_.text(key("rope.scaling.type"), "longrope");
      say("rope.scaling.type", "longrope");
    }
    number("rope.scaling.original_context_length", draw_.of({64U, 128U, 4096U}));
    // Heads that are normed behind their rotation can't be stretched.
    if (draw_.one_in(2) && !is({"hunyuan-dense", "hunyuan-moe"}))
      real("rope.scaling.attn_factor", 1.19);
  }

  void add_windows() {
    if (!is({"gemma2", "gemma3", "gemma4", "cohere2", "command-r", "exaone4", "olmo2", "gpt-oss",
             "gemma-embedding", "exaone-moe", "mellum", "modern-bert", "step35", "afmoe"}))
      return;
    const bool sliding = std::ranges::find(slides_, 1) != slides_.end();
    if (is({"gemma4"}) && !sliding) return numbers("attention.sliding_window_pattern", slides_);
    if (!is({"gpt-oss", "gemma4", "exaone-moe", "step35"}) && draw_.one_in(4)) return;
    number("attention.sliding_window",
           draw_.of({1U, 2U, 7U, 31U, 32U, 33U, 63U, 64U, 65U, 96U, 1000U}));
    if (is({"gemma4"})) return numbers("attention.sliding_window_pattern", slides_);
    if (is({"step35"}) || draw_.one_in(2)) {
      std::vector<std::int32_t> marks(made_.layers);
      for (std::int32_t& mark : marks)
        mark = draw_.one_in(2) ? 1 : 0;
      numbers("attention.sliding_window_pattern", marks);
    } else if (draw_.one_in(2)) {
      number("attention.sliding_window_pattern", 1 + draw_.below(4));
    }
    if (draw_.one_in(2)) real("rope.freq_base_swa", 700);
  }

  void add_experts() {
    const bool must = is({"qwen2moe", "qwen3moe", "qwen3vlmoe", "olmoe", "gpt-oss", "granitemoe",
                          "qwen35moe", "qwen3next", "mellum", "hy_v3", "step35", "nomic-bert-moe"});
    const bool may = chooses_by_scores() || is({"llama", "granitehybrid", "gemma4"});
    if (!must && (!may || draw_.one_in(chooses_by_scores() ? 6 : 2))) return;
    std::uint32_t count = draw_.of({1U, 2U, 3U, 5U, 8U, 8U, 16U, 33U, 60U, 100U, 128U, 256U});
    std::uint32_t used = 1 + draw_.below(std::min(count, 10U));
    if (draw_.one_in(5)) used = std::min(count, 10U);
    if (chooses_by_scores()) {
      const std::uint32_t groups = draw_.of({1U, 1U, 2U, 3U, 4U, 8U}),
                          groups_used = 1 + draw_.below(groups);
      count = (count + groups - 1) / groups * groups;
      used = std::min(used, count / groups * groups_used);
      number("expert_group_count", groups);
      number("expert_group_used_count", groups_used);
      number("leading_dense_block_count", draw_.below(2));
      number("expert_shared_count", draw_.below(3));
      if (!has_rotating_latents() || draw_.one_in(2))
        number("expert_gating_func", 1 + draw_.below(2));
      flag("expert_weights_norm", draw_.one_in(2));
      if (draw_.one_in(2)) real("expert_weights_scale", 2.5);
    }
    number("expert_count", count);
    number("expert_used_count", used);
    const std::uint32_t width = draw_.of({1U, 31U, 32U, 33U, 64U, 96U, 100U, 256U});
    if (!is({"qwen3moe", "olmoe", "mellum", "hy_v3"}) || draw_.one_in(2))
      number("expert_feed_forward_length", width);
    if (!chooses_by_scores() || draw_.one_in(2))
      number("expert_shared_feed_forward_length", draw_.of({1U, 32U, 33U, 96U, 100U, 256U}));
  }

  void add_scales() {
    if (is({"granite", "granitemoe", "granitehybrid"})) {
      real("embedding_scale", draw_.of({1.0, 3.0, 12.0}));
      real("residual_scale", draw_.of({1.0, 0.4, 0.22}));
      real("logit_scale", draw_.of({1.0, 4.0}));
      if (draw_.one_in(2)) real("attention.scale", 0.2);
      if (draw_.one_in(2)) flag("rope.scaling.finetuned", draw_.one_in(2));
    }
    if (is({"nemotron_h", "nemotron_h_moe"}) && draw_.one_in(2)) real("attention.scale", 0.2);
    if (is({"command-r", "cohere2"})) real("logit_scale", 0.25);
    if (is({"step35"})) {
      real("swiglu_clamp_exp", draw_.of({0.0, 7.0}));
      real("swiglu_clamp_shexp", draw_.of({0.0, 16.0}));
    }
    if (is({"mistral3", "deepseek2", "mistral4"}) && draw_.one_in(2)) {
      real("attention.temperature_scale", 0.3);
      number("attention.temperature_length", 16);
    }
    if (is({"gemma2"}) && draw_.one_in(2))
      real("attn_logit_softcapping", draw_.of({0.0, 5.0, 50.0}));
    if (is({"gemma2", "gemma3", "gemma4"}) && draw_.one_in(2)) real("final_logit_softcapping", 5);
    if (is({"gemma4"}) && draw_.one_in(2))
      number("embedding_length_per_layer_input", draw_.of({1U, 16U, 33U, 64U}));
  }

  void add_states() {
    if (!has_states()) return;
    std::vector<std::int32_t> kv_heads, widths;
    std::string kinds(made_.layers, 's');
    for (char& kind : kinds)
      kind = is({"nemotron_h", "nemotron_h_moe"}) ? draw_.of({'s', 'a', 'f'})
                                                  : draw_.of({'s', 's', 'a'});
    kinds[draw_.below(made_.layers)] = 'a';
    for (const char kind : kinds) {
      const std::uint32_t kv = is({"kimi-linear"}) ? 1 : kv_heads_;
      kv_heads.push_back(kind == 'a' ? static_cast<std::int32_t>(kv) : 0);
      widths.push_back(kind == 'f' ? static_cast<std::int32_t>(hidden_) : 0);
    }
    const std::uint32_t taps = draw_.of({2U, 3U, 4U, 4U, 7U, 16U});
    if (is({"lfm2", "lfm2moe"})) {
      numbers("attention.head_count_kv", kv_heads);
      number("shortconv.l_cache", taps);
      return;
    }
    if (is({"kimi-linear"})) {
      numbers("attention.head_count_kv", kv_heads);
      number("ssm.conv_kernel", taps);
      number("kda.head_dim", draw_.of({4U, 12U, 16U, 32U, 64U, 128U}));
      return;
    }
    const bool delta = is({"qwen35", "qwen35moe", "qwen3next"});
    const std::uint32_t groups = draw_.of({1U, 2U, 3U, 5U}),
                        values = groups * draw_.of({1U, 1U, 2U, 3U, 7U}),
                        size = draw_.of({4U, 12U, 16U, 20U, 32U, 64U, 100U, 128U}),
                        value_size = delta ? size : draw_.of({4U, 12U, 24U, 32U, 64U, 100U});
    number("ssm.conv_kernel", taps);
    number("ssm.group_count", groups);
    number("ssm.time_step_rank", values);
    number("ssm.state_size", size);
    number("ssm.inner_size", values * value_size);
    if (is({"falcon-h1"})) return;
    if (!delta) {
      numbers("attention.head_count_kv", kv_heads);
    } else if (draw_.one_in(2)) {
      std::vector<std::int32_t> marks;
      for (const char kind : kinds)
        marks.push_back(kind == 'a' ? 0 : 1);
      numbers("attention.recurrent_layers", marks);
    } else {
      number("full_attention_interval", 1 + draw_.below(made_.layers));
    }
    if (is({"nemotron_h", "nemotron_h_moe"})) numbers("feed_forward_length", widths);
  }

  void add_encoder() {
    flag("attention.causal", false);
    if (is({"nomic-bert-moe"})) number("moe_every_n_layers", 1 + draw_.below(3));
    if (is({"modern-bert"}) && draw_.one_in(2))
      file_.text(key("hidden_activation"), draw_.one_in(2) ? "silu" : "gelu");
    number("pooling_type", draw_.below(5));
    if (is({"gemma-embedding"})) number("dense_2_feat_out", draw_.of({32U, 33U, 96U, 100U}));
  }

  void add_xielu() {
    file_.f32("xielu.alpha_p", 0.2F).f32("xielu.alpha_n", 0.4F);
    file_.f32("xielu.beta", 0.5F).f32("xielu.eps", -1e-6F);
  }

  const std::string& architecture_;
  Draw& draw_;
  GgufBuilder& file_;
  RandomKeys made_;
  std::uint32_t embedding_ = 0, hidden_ = 0, heads_ = 0, kv_heads_ = 0, size_ = 0,
                sliding_size_ = 0;
  std::vector<std::int32_t> slides_;
};

}  // namespace

RandomKeys add_random_keys(const std::string& architecture, Draw& draw, GgufBuilder& file) {
  return Keys(architecture, draw, file).add();
}

}  // namespace bulkhead::forward
