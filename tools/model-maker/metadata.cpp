#include "tools/model-maker/metadata.hpp"

#include <cstring>
#include <fstream>

#include "worker/model/gguf.hpp"

namespace bulkhead::model_maker {
namespace {

// GGUF's value types.
constexpr std::uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;
constexpr std::uint32_t kFixedSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

constexpr std::int32_t kNormal = 1, kControl = 3, kUnused = 5;

constexpr const char* kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

void append_utf8(std::string& out, std::uint32_t point) {
  if (point < 0x80) {
    out += static_cast<char>(point);
  } else {
    out += static_cast<char>(0xc0 | (point >> 6));
    out += static_cast<char>(0x80 | (point & 0x3f));
  }
}

// Returns the character that byte-level BPE writes for a byte: the byte itself if it is printable, otherwise a
// character from U+0100 on.
std::string character_of_byte(std::uint32_t byte) {
  const auto prints = [](std::uint32_t b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  };
  std::uint32_t point = byte;
  if (!prints(byte)) {
    point = 0x100;
    for (std::uint32_t b = 0; b < byte; ++b)
      point += prints(b) ? 0 : 1;
  }
  std::string text;
  append_utf8(text, point);
  return text;
}

}  // namespace

void append_u32(std::string& out, std::uint32_t value) {
  char bytes[4];
  std::memcpy(bytes, &value, 4);
  out.append(bytes, 4);
}

void append_u64(std::string& out, std::uint64_t value) {
  char bytes[8];
  std::memcpy(bytes, &value, 8);
  out.append(bytes, 8);
}

void append_text(std::string& out, std::string_view text) {
  append_u64(out, text.size());
  out.append(text);
}

void Metadata::key(std::string_view key, std::uint32_t type) {
  append_text(bytes_, key);
  append_u32(bytes_, type);
  ++count_;
}
void Metadata::add_uint(std::string_view name, std::uint32_t value) {
  key(name, kUint32);
  append_u32(bytes_, value);
}
void Metadata::add_float(std::string_view name, float value) {
  key(name, kFloat32);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  append_u32(bytes_, bits);
}
void Metadata::add_bool(std::string_view name, bool value) {
  key(name, kBool);
  bytes_ += value ? '\1' : '\0';
}
void Metadata::add_string(std::string_view name, std::string_view value) {
  key(name, kString);
  append_text(bytes_, value);
}
void Metadata::add_strings(std::string_view name, const std::vector<std::string>& values) {
  key(name, kArray);
  append_u32(bytes_, kString);
  append_u64(bytes_, values.size());
  for (const std::string& value : values)
    append_text(bytes_, value);
}
void Metadata::add_ints(std::string_view name, const std::vector<std::int32_t>& values) {
  key(name, kArray);
  append_u32(bytes_, kInt32);
  append_u64(bytes_, values.size());
  for (const std::int32_t value : values)
    append_u32(bytes_, static_cast<std::uint32_t>(value));
}
void Metadata::add_raw(std::string_view key_and_value) {
  bytes_.append(key_and_value);
  ++count_;
}
void Metadata::append(const Metadata& other) {
  bytes_ += other.bytes_;
  count_ += other.count_;
}

std::string header_without_tensors(const Metadata& metadata) {
  std::string bytes = "GGUF";
  append_u32(bytes, 3);
  append_u64(bytes, 0);
  append_u64(bytes, metadata.count());
  return bytes + metadata.bytes();
}

namespace {

void add_latent_keys(const Shape& shape, Metadata& metadata) {
  const std::string prefix = shape.architecture + ".attention.";
  const bool joined = shape.joined_latents;
  metadata.add_uint(prefix + "key_length", joined ? shape.head_size : shape.latent + shape.turning);
  metadata.add_uint(prefix + "value_length", joined ? shape.value_size : shape.latent);
  if (!joined) {
    metadata.add_uint(prefix + "key_length_mla", shape.head_size);
    metadata.add_uint(prefix + "value_length_mla", shape.value_size);
  }
  metadata.add_uint(prefix + "kv_lora_rank", shape.latent);
  if (shape.q_latent != 0) metadata.add_uint(prefix + "q_lora_rank", shape.q_latent);
}

void add_delta_keys(const Shape& shape, Metadata& metadata) {
  const std::string& prefix = shape.architecture;
  metadata.add_uint(prefix + ".ssm.conv_kernel", 4);
  metadata.add_uint(prefix + ".ssm.state_size", shape.delta_size);
  metadata.add_uint(prefix + ".ssm.group_count", shape.delta_keys);
  metadata.add_uint(prefix + ".ssm.time_step_rank", shape.delta_values);
  const std::uint32_t size = shape.kinds.empty() ? shape.delta_size : shape.mamba_size;
  metadata.add_uint(prefix + ".ssm.inner_size", shape.delta_values * size);
  if (shape.kinds.empty()) metadata.add_uint(prefix + ".full_attention_interval", 4);
}

void add_kinds_keys(const Shape& shape, Metadata& metadata) {
  std::vector<std::int32_t> kv_heads, widths;
  for (const char kind : shape.kinds) {
    const bool both = kind == 'H';
    kv_heads.push_back(both || kind == '*' ? static_cast<std::int32_t>(shape.kv_heads) : 0);
    widths.push_back(both || kind == 'E' ? static_cast<std::int32_t>(shape.feed_forward) : 0);
  }
  metadata.add_ints(shape.architecture + ".attention.head_count_kv", kv_heads);
  if (shape.taps != 0) {
    metadata.add_uint(shape.architecture + ".shortconv.l_cache", shape.taps);
    metadata.add_uint(shape.architecture + ".feed_forward_length", shape.feed_forward);
  } else {
    metadata.add_ints(shape.architecture + ".feed_forward_length", widths);
  }
}

void add_two_kinds_keys(const Shape& shape, Metadata& metadata) {
  const std::string& prefix = shape.architecture;
  std::vector<std::int32_t> kv_heads, slides;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const bool full = (layer + 1) % shape.full_interval == 0;
    kv_heads.push_back(static_cast<std::int32_t>(full ? shape.full_kv_heads : shape.kv_heads));
    slides.push_back(full ? 0 : 1);
  }
  metadata.add_ints(prefix + ".attention.head_count_kv", kv_heads);
  metadata.add_ints(prefix + ".attention.sliding_window_pattern", slides);
  metadata.add_uint(prefix + ".attention.key_length_swa", shape.window_head_size);
  metadata.add_uint(prefix + ".attention.value_length_swa", shape.window_head_size);
  metadata.add_uint(prefix + ".rope.dimension_count_swa", shape.window_head_size);
  metadata.add_float(prefix + ".rope.freq_base_swa", shape.window_rope_base);
  metadata.add_float(prefix + ".final_logit_softcapping", shape.logit_cap);
}

void add_scored_expert_keys(const Shape& shape, Metadata& metadata) {
  constexpr std::uint32_t kSoftmax = 1, kSigmoid = 2;
  const std::string& prefix = shape.architecture;
  metadata.add_uint(prefix + ".leading_dense_block_count", shape.dense_layers);
  metadata.add_uint(prefix + ".expert_shared_count", shape.shared_experts);
  metadata.add_uint(prefix + ".expert_gating_func", shape.sigmoid ? kSigmoid : kSoftmax);
  metadata.add_bool(prefix + ".expert_weights_norm", shape.renormalised);
  metadata.add_float(prefix + ".expert_weights_scale", shape.expert_scale);
}

}  // namespace

void add_model_keys(const Shape& shape, std::uint32_t file_type, Metadata& metadata) {
  const std::string& prefix = shape.architecture;
  metadata.add_string("general.architecture", shape.architecture);
  metadata.add_string("general.name", shape.name + " (random weights)");
  metadata.add_uint("general.quantization_version", 2);
  metadata.add_uint("general.file_type", file_type);
  metadata.add_uint(prefix + ".block_count", shape.layers + (shape.drafting_block ? 1 : 0));
  if (shape.drafting_block) metadata.add_uint(prefix + ".nextn_predict_layers", 1);
  metadata.add_uint(prefix + ".context_length", shape.context);
  metadata.add_uint(prefix + ".embedding_length", shape.embedding);
  if (shape.kinds.empty()) metadata.add_uint(prefix + ".feed_forward_length", shape.feed_forward);
  metadata.add_uint(prefix + ".attention.head_count", shape.heads);
  if (!shape.kinds.empty()) {
    add_kinds_keys(shape, metadata);
  } else if (shape.full_interval != 0) {
    add_two_kinds_keys(shape, metadata);
  } else {
    metadata.add_uint(prefix + ".attention.head_count_kv",
                      shape.joined_latents ? shape.heads : shape.kv_heads);
  }
  if (shape.latent == 0) {
    metadata.add_uint(prefix + ".attention.key_length", shape.head_size);
    metadata.add_uint(prefix + ".attention.value_length", shape.head_size);
  } else {
    add_latent_keys(shape, metadata);
  }
  metadata.add_float(prefix + ".attention.layer_norm_rms_epsilon", shape.rms_epsilon);
  metadata.add_float(prefix + ".attention.layer_norm_epsilon", shape.rms_epsilon);
  metadata.add_float(prefix + ".rope.freq_base", shape.rope_base);
  metadata.add_uint(prefix + ".rope.dimension_count",
                    shape.turning != 0 ? shape.turning : shape.head_size);
  metadata.add_uint(prefix + ".vocab_size", shape.vocabulary);
  if (shape.experts != 0) {
    metadata.add_uint(prefix + ".expert_count", shape.experts);
    metadata.add_uint(prefix + ".expert_used_count", shape.experts_used);
    metadata.add_uint(prefix + ".expert_feed_forward_length", shape.expert_width);
    if (shape.shared_width != 0)
      metadata.add_uint(prefix + ".expert_shared_feed_forward_length", shape.shared_width);
    if (shape.expert_scale != 0) add_scored_expert_keys(shape, metadata);
  }
  if (shape.delta_values != 0) add_delta_keys(shape, metadata);
  if (shape.window != 0) metadata.add_uint(prefix + ".attention.sliding_window", shape.window);
  if (!shape.rope_scaling.empty()) {
    metadata.add_string(prefix + ".rope.scaling.type", shape.rope_scaling);
    metadata.add_float(prefix + ".rope.scaling.factor", shape.rope_factor);
    if (shape.yarn_log_multiplier != 0)
      metadata.add_float(prefix + ".rope.scaling.yarn_log_multiplier", shape.yarn_log_multiplier);
  }
  if (shape.pooling != 0) {
    metadata.add_bool(prefix + ".attention.causal", false);
    metadata.add_uint(prefix + ".pooling_type", shape.pooling);
  }
  if (shape.dense != 0) {
    metadata.add_uint(prefix + ".dense_2_feat_in", shape.embedding);
    metadata.add_uint(prefix + ".dense_2_feat_out", shape.dense);
    metadata.add_uint(prefix + ".dense_3_feat_in", shape.dense);
    metadata.add_uint(prefix + ".dense_3_feat_out", shape.embedding);
  }
  if (shape.rope_original != 0)
    metadata.add_uint(prefix + ".rope.scaling.original_context_length", shape.rope_original);
  add_own_keys(shape, metadata);
}

namespace {

const std::string kConsonants = "bcdfghjklmnprstvwxyz", kVowels = "aeiou";

// Makes a vocabulary for WordPiece (worker/model/wordpiece_tokenizer.cpp). Its pieces are letters, digits, marks,
// syllables and pairs of syllables. Each piece has two tokens: one begins a word, and one continues a word.
Status add_made_words(const Shape& shape, Metadata& metadata) {
  const std::vector<std::string> special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  std::vector<std::string> parts;
  for (char c = '!'; c <= '~'; ++c) {
    if (c < 'A' || c > 'Z') parts.emplace_back(1, c);  // texts become lower case
  }
  const std::size_t least = special.size() + 2 * parts.size();
  if (shape.vocabulary < least) {
    return Error(ErrorCode::kInvalidArgument,
                 "a vocabulary of " + std::to_string(shape.vocabulary) +
                     " tokens is too small; it needs " + std::to_string(least) + " at least");
  }
  std::vector<std::string> syllables;
  for (const char consonant : kConsonants) {
    for (const char vowel : kVowels)
      syllables.push_back(std::string() + consonant + vowel);
  }
  parts.insert(parts.end(), syllables.begin(), syllables.end());
  for (const std::string& a : syllables) {
    for (const std::string& b : syllables)
      parts.push_back(a + b);
  }
  std::vector<std::string> tokens = special;
  for (const std::string& part : parts) {
    for (const char* const mark : {"\u2581", ""}) {
      if (tokens.size() < shape.vocabulary) tokens.push_back(mark + part);
    }
  }
  for (std::size_t i = 0; tokens.size() < shape.vocabulary; ++i)
    tokens.push_back("[unused" + std::to_string(i) + "]");
  std::vector<std::int32_t> types(tokens.size(), kNormal);
  std::fill_n(types.begin(), special.size(), static_cast<std::int32_t>(kControl));
  metadata.add_string("tokenizer.ggml.model", "bert");
  metadata.add_string("tokenizer.ggml.pre", "jina-v2-en");
  metadata.add_uint("tokenizer.ggml.token_type_count", 2);
  metadata.add_strings("tokenizer.ggml.tokens", tokens);
  metadata.add_ints("tokenizer.ggml.token_type", types);
  metadata.add_uint("tokenizer.ggml.padding_token_id", 0);
  metadata.add_uint("tokenizer.ggml.unknown_token_id", 1);
  metadata.add_uint("tokenizer.ggml.cls_token_id", 2);
  metadata.add_uint("tokenizer.ggml.bos_token_id", 2);        // llama.cpp's name for the same
  metadata.add_uint("tokenizer.ggml.seperator_token_id", 3);  // GGUF writes it so
  metadata.add_uint("tokenizer.ggml.mask_token_id", 4);
  return {};
}

}  // namespace

Status add_made_vocabulary(const Shape& shape, Metadata& metadata) {
  if (shape.architecture.ends_with("bert")) return add_made_words(shape, metadata);
  const std::vector<std::string> special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>",
                                            "<|pad|>"};
  if (shape.vocabulary < 256 + special.size() + 10 + std::uint64_t{shape.padding}) {
    return Error(ErrorCode::kInvalidArgument,
                 "a vocabulary of " + std::to_string(shape.vocabulary) + " tokens with " +
                     std::to_string(shape.padding) +
                     " of padding is too small; it needs 270 others at least");
  }
  const std::size_t words = shape.vocabulary - special.size() - shape.padding;
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  for (std::uint32_t byte = 0; byte < 256; ++byte)
    tokens.push_back(character_of_byte(byte));
  const auto merge = [&](const std::string& left, const std::string& right) {
    if (tokens.size() >= words) return;
    tokens.push_back(left + right);
    merges.push_back(left + " " + right);
  };
  // Each step joins tokens of the steps before, so that every token can be reached: ba, baba, (space)baba, bababa,
  // ...
  const std::string space = character_of_byte(' ');
  std::vector<std::string> syllables, pairs;
  for (const char consonant : kConsonants) {
    for (const char vowel : kVowels) {
      merge(std::string(1, consonant), std::string(1, vowel));
      syllables.push_back(std::string() + consonant + vowel);
    }
  }
  for (const std::string& a : syllables) {
    for (const std::string& b : syllables) {
      merge(a, b);
      pairs.push_back(a + b);
    }
  }
  for (const std::string& pair : pairs)
    merge(space, pair);
  for (const std::string& pair : pairs) {
    for (const std::string& syllable : syllables)
      merge(pair, syllable);
  }
  if (tokens.size() < words) {
    return Error(ErrorCode::kInvalidArgument, "a made vocabulary holds at most " +
                                                  std::to_string(tokens.size() + special.size()) +
                                                  " tokens");
  }
  std::vector<std::int32_t> types(tokens.size(), kNormal);
  const auto first_special = static_cast<std::uint32_t>(tokens.size());
  for (const std::string& text : special) {
    tokens.push_back(text);
    types.push_back(kControl);
  }
  while (tokens.size() < shape.vocabulary) {
    tokens.push_back("[PAD" + std::to_string(tokens.size()) + "]");
    types.push_back(kUnused);
  }
  metadata.add_string("tokenizer.ggml.model", "gpt2");
  metadata.add_string("tokenizer.ggml.pre", shape.architecture == "llama" ? "llama-bpe" : "qwen2");
  metadata.add_strings("tokenizer.ggml.tokens", tokens);
  metadata.add_ints("tokenizer.ggml.token_type", types);
  metadata.add_strings("tokenizer.ggml.merges", merges);
  metadata.add_uint("tokenizer.ggml.bos_token_id", first_special);
  metadata.add_uint("tokenizer.ggml.eos_token_id", first_special + 2);
  metadata.add_uint("tokenizer.ggml.padding_token_id", first_special + 3);
  metadata.add_bool("tokenizer.ggml.add_bos_token", false);
  if (shape.pooling == 0) metadata.add_string("tokenizer.chat_template", kChatMl);
  return {};
}

namespace {

// Walks through the metadata of a file that GgufFile::open has checked. Every read is bounded by the file
// nevertheless.
class Walker {
 public:
  explicit Walker(std::ifstream& file) : file_(file) {}
  bool ok() const { return static_cast<bool>(file_); }
  std::string take(std::uint64_t size) {
    constexpr std::uint64_t kMost = 256 << 20;
    if (size > kMost) file_.setstate(std::ios::failbit);
    if (!file_) return {};
    std::string bytes(size, '\0');
    file_.read(bytes.data(), static_cast<std::streamsize>(size));
    copied_ += bytes;
    return bytes;
  }
  std::uint32_t u32() {
    std::uint32_t value = 0;
    const std::string bytes = take(4);
    if (bytes.size() == 4) std::memcpy(&value, bytes.data(), 4);
    return value;
  }
  std::uint64_t u64() {
    std::uint64_t value = 0;
    const std::string bytes = take(8);
    if (bytes.size() == 8) std::memcpy(&value, bytes.data(), 8);
    return value;
  }
  std::string text() { return take(u64()); }
  void value(std::uint32_t type) {
    if (type == kString) {
      text();
    } else if (type == kArray) {
      const std::uint32_t element = u32();
      last_count_ = u64();
      if (element == kString) {
        for (std::uint64_t i = 0; i < last_count_ && ok(); ++i)
          text();
      } else if (element < std::size(kFixedSizes) && kFixedSizes[element] > 0 &&
                 last_count_ < (256U << 20)) {
        take(last_count_ * kFixedSizes[element]);
      } else {
        file_.setstate(std::ios::failbit);
      }
    } else if (type < std::size(kFixedSizes)) {
      take(kFixedSizes[type]);
    } else {
      file_.setstate(std::ios::failbit);
    }
  }
  std::string& copied() { return copied_; }
  std::uint64_t last_count() const { return last_count_; }

 private:
  std::ifstream& file_;
  std::string copied_;
  std::uint64_t last_count_ = 0;
};

}  // namespace

Result<std::uint32_t> copy_vocabulary(const std::string& path, Metadata& metadata) {
  // The product's own reader checks the file first; its messages say what is wrong and where.
  if (const auto checked = model::GgufFile::open(path); !checked.ok()) return checked.error();
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_error(ErrorCode::kNotFound, "open " + path, errno);
  Walker walker(file);
  walker.u32();  // magic
  walker.u32();  // version
  walker.u64();  // tensors
  const std::uint64_t count = walker.u64();
  std::uint32_t tokens = 0;
  for (std::uint64_t i = 0; i < count && walker.ok(); ++i) {
    walker.copied().clear();
    const std::string key = walker.text();
    walker.value(walker.u32());
    if (!walker.ok() || !key.starts_with("tokenizer.")) continue;
    metadata.add_raw(walker.copied());
    if (key == "tokenizer.ggml.tokens") tokens = static_cast<std::uint32_t>(walker.last_count());
  }
  if (!walker.ok()) return Error(ErrorCode::kCorrupt, path + ": its metadata can't be copied");
  if (tokens == 0)
    return Error(ErrorCode::kNotFound, path + " has no tokenizer.ggml.tokens to copy");
  return tokens;
}

}  // namespace bulkhead::model_maker
