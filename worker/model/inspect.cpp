#include "worker/model/inspect.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string_view>

#include "worker/model/architecture.hpp"
#include "worker/model/file_facts.hpp"
#include "worker/model/ranking.hpp"
#include "worker/model/template_file.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {
namespace {

std::string bytes_text(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits))
    value /= 1024, ++unit;
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return buffer;
}

std::string count_text(std::uint64_t count) {
  static constexpr struct {
    double unit;
    const char* suffix;
  } kUnits[] = {{1e9, " billion"}, {1e6, " million"}, {1e3, " thousand"}};
  for (const auto& [unit, suffix] : kUnits) {
    if (static_cast<double>(count) < unit) continue;
    char buffer[48];
    std::snprintf(buffer, sizeof buffer, "%.2f%s", static_cast<double>(count) / unit, suffix);
    return buffer;
  }
  return std::to_string(count);
}

std::string shape_text(const TensorInfo& tensor) {
  std::string text;
  for (std::uint32_t d = 0; d < tensor.dimensions; ++d)
    text += (d == 0 ? "" : " x ") + std::to_string(tensor.ne[d]);
  return text;
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// If something is broken, the caller gets an error; if this program only lacks support for something, the text says
// so. Returns whether the model may write text.
Result<bool> describe_architecture(std::string& out, const GgufFile& file,
                                   const Result<std::unique_ptr<Tokenizer>>& tokenizer) {
  const auto graph = read_model(file);
  if (!graph.ok()) {
    if (graph.error().code() == ErrorCode::kCorrupt) return graph.error();
    out += "runs:         no: " + graph.error().message() + "\n";
    return true;
  }
  const auto line = [&out](const char* label, const std::string& text) {
    out += padded(label, 14) + text + "\n";
  };
  line("runs:", tokenizer.ok() ? "yes" : "no: " + tokenizer.error().message());
  line("architecture:", graph->architecture);
  if (const FileFacts facts = facts_of(file); !facts.size.empty())
    line("size:", facts.size + ", " + facts.quantization);
  line("layers:", std::to_string(graph->layers.size()));
  const auto* const gated = first_operation<GatedProduct>(*graph);
  const auto* const experts = first_operation<Experts>(*graph);
  line("widths:",
       "embedding " + std::to_string(graph->embedding) +
           (gated != nullptr ? ", feed-forward " + std::to_string(gated->gate.rows) : ""));
  if (experts != nullptr)
    line("experts:", std::to_string(experts->router.experts) + " of width " +
                         std::to_string(experts->width) + ", " +
                         std::to_string(experts->router.used) + " used by each token");
  if (const auto* const rotate = first_operation<Rotate>(*graph)) {
    const HeadShape& heads = rotate->heads;
    line("attention:", std::to_string(heads.heads) + " heads, " + std::to_string(heads.kv_heads) +
                           " key-value heads of " + std::to_string(heads.size) +
                           (rotate->bias != kAbsent ? ", q/k/v biases" : "") +
                           (rotate->q_gain != kAbsent ? ", q/k norms" : ""));
  }
  if (const auto* const rotate = first_operation<RotateLatent>(*graph)) {
    const std::uint32_t latent = graph->kv[rotate->kv].value_entries;
    line("attention:", std::to_string(rotate->heads.heads) + " heads over latents of " +
                           std::to_string(latent) + " and " +
                           std::to_string(rotate->heads.size - latent) +
                           (rotate->rope != kAbsent ? " entries that turn" : " other entries"));
  }
  if (const auto* const net = first_operation<DeltaNet>(*graph)) {
    const DeltaHeads& heads = net->heads;
    line("states:", std::to_string(graph->states.size()) + " layers are " +
                        (heads.rule == StateRule::kSum        ? "Mamba-2"
                         : heads.rule == StateRule::kChannels ? "Kimi Delta Attention"
                                                              : "gated delta nets") +
                        ", with " + std::to_string(heads.values) + " heads of " +
                        std::to_string(heads.size) + " x " + std::to_string(heads.value_size));
  }
  if (const auto* const convolution = first_operation<ShortConvolution>(*graph))
    line("states:", std::to_string(graph->states.size()) + " layers are short convolutions over " +
                        std::to_string(convolution->taps) + " positions");
  line("vocabulary:",
       std::to_string(graph->vocabulary) + " tokens" +
           (graph->tied_output() && !is_encoder(*graph) ? ", output tied to the embeddings" : ""));
  line("context:", std::to_string(graph->context) + " tokens");
  std::string advice;
  for (const SamplerAdvice& each : sampler_advice(file)) {
    char value[48];
    std::snprintf(value, sizeof value, " %g", each.value);
    advice += (advice.empty() ? "" : ", ") + std::string(each.name) + value;
  }
  if (!advice.empty()) line("recommends:", advice + " (models[].sampling_defaults: file)");
  if (is_encoder(*graph)) {
    const auto* const pool = first_operation<PoolColumns>(*graph);
    line("makes:", std::string("embeddings (/v1/embeddings) of a text's ") +
                       (pool == nullptr ? "last token"
                        : pool->mean    ? "tokens, their mean"
                                        : "first token") +
                       ", and no text");
  }
  if (!has_rank_head(file) || !tokenizer.ok()) return !is_encoder(*graph);
  const auto ranker = load_ranker(file, **tokenizer, *graph, "");
  if (!ranker.ok() && ranker.error().code() == ErrorCode::kCorrupt) return ranker.error();
  line("ranks:", !ranker.ok()        ? "no: " + ranker.error().message()
                 : ranker->generates ? "documents (/v1/rerank)"
                                     : "documents (/v1/rerank), and does nothing else");
  return !is_encoder(*graph);
}

// Says what the model's template can show.
std::string abilities_text(const jinja::Chat& chat) {
  const jinja::Abilities& can = chat.abilities();
  std::string text = "template";
  const char* separator = " with ";
  const auto add = [&](bool has, const char* name) {
    if (!has) return;
    text += separator + std::string(name);
    separator = ", ";
  };
  add(can.system_role, "system role");
  add(can.tools, "tools");
  add(can.parallel_calls, "parallel calls");
  add(can.thinking_on || can.thinking_off || can.other_switch != nullptr, "switchable thinking");
  return text;
}

// `writes`: the model may write text.
Status describe_text(std::string& out, const GgufFile& file,
                     const Result<std::unique_ptr<Tokenizer>>& tokenizer, bool writes) {
  if (!file.has("tokenizer.ggml.model")) return {};
  if (!tokenizer.ok() && tokenizer.error().code() == ErrorCode::kCorrupt) return tokenizer.error();
  out += "tokenizer:    " +
         (tokenizer.ok() ? std::to_string((*tokenizer)->size()) + " tokens"
                         : "no: " + tokenizer.error().message()) +
         "\n";
  if (!writes) return {};
  const auto chat = load_chat(file);
  out += "chat:         " + (chat.ok() ? abilities_text(*chat) : "no: " + chat.error().message()) +
         "\n";
  return {};
}

void describe_totals(std::string& out, const GgufFile& file) {
  struct Total {
    std::uint64_t tensors = 0;
    std::uint64_t weights = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::string, Total> by_type;
  Total all;
  for (const TensorInfo& tensor : file.tensors()) {
    for (Total* total : {&by_type[traits(tensor.type)->name], &all}) {
      ++total->tensors;
      total->weights += tensor.elements();
      total->bytes += tensor.data.size();
    }
  }
  out += "\nTensors by type\n";
  const auto line = [&out](const std::string& name, const Total& total) {
    out += "  " + padded(name, 8) + padded(std::to_string(total.tensors) + " tensors", 16) +
           padded(count_text(total.weights) + " weights", 26) + bytes_text(total.bytes) + "\n";
  };
  for (const auto& [name, total] : by_type)
    line(name, total);
  line("all", all);
}

// Tensors of later layers look like the first layer's.
bool of_later_layer(std::string_view name) {
  return name.starts_with("blk.") && !name.starts_with("blk.0.");
}

}  // namespace

Result<std::string> describe(const GgufFile& file, bool all_tensors) {
  std::string out = "file:         " + file.name() + "\n";
  out += "format:       GGUF v" + std::to_string(file.version()) + ", " +
         bytes_text(file.file_bytes()) + "\n";
  const auto tokenizer = Tokenizer::from_gguf(file);
  BULKHEAD_TRY(const bool writes, describe_architecture(out, file, tokenizer));
  BULKHEAD_RETURN_IF_ERROR(describe_text(out, file, tokenizer, writes));

  const auto metadata = file.metadata();
  out += "\nMetadata (" + std::to_string(metadata.size()) + " keys)\n";
  std::size_t key_width = 0;
  for (const auto& entry : metadata)
    key_width = std::max(key_width, entry.key.size());
  constexpr std::size_t kWidestKey = 48;
  key_width = std::min(key_width, kWidestKey);
  for (const auto& entry : metadata)
    out += "  " + padded(std::string(entry.key), key_width) + "  " + entry.value + "  (" +
           entry.type + ")\n";

  if (file.tensors().empty()) {
    out += "\nNo tensors: a vocabulary-only file.\n";
    return out;
  }
  describe_totals(out, file);

  out += "\nTensors (" + std::to_string(file.tensors().size()) + ")\n";
  std::size_t left_out = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    if (!all_tensors && of_later_layer(tensor.name)) {
      ++left_out;
      continue;
    }
    out += "  " + padded(std::string(tensor.name), 28) + " " +
           padded(traits(tensor.type)->name, 7) + padded(shape_text(tensor), 18) +
           bytes_text(tensor.data.size()) + "\n";
  }
  if (left_out > 0) out += "  ... and " + std::to_string(left_out) + " of the later layers\n";
  return out;
}

}  // namespace bulkhead::model
