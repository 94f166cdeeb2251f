// `bulkhead tokenize` and `bulkhead inspect`: the subcommands that need a model file but no daemon.

#include <charconv>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "config/base/clean_text.hpp"
#include "config/settings.hpp"
#include "gpu/device.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/inspect_json.hpp"
#include "tools/cli/model_fit.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/inspect.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::cli {
namespace {

std::string in_mib(std::uint64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

// Prints one line for each token: ID "TEXT".
bool put_pieces(const model::Tokenizer& tokenizer, std::span<const model::TokenId> ids) {
  for (const model::TokenId id : ids) {
    const std::string_view text = tokenizer.visible_piece(id);
    if (!put(std::to_string(id) + " \"" + cleaned(text) + "\"\n")) return false;
  }
  return true;
}

// A GPU with matrix units lays weights out differently, and some types then take half a bit more for each weight.
// The program does not know the device here, nor how much memory it has.
Result<std::string> memory_text(const model::GgufFile& file, const model::ModelGraph& graph) {
  config::EngineSettings engine;
  const forward::UsualBatch batch = forward::usual_batch(engine, file, graph);
  engine.max_batch = batch.most;
  BULKHEAD_TRY(const forward::MemoryNeed need, forward::memory_need(file, graph, engine));
  BULKHEAD_TRY(const forward::MemoryNeed with_units,
               forward::memory_need(file, graph, engine, true));
  std::string out = "\nDevice memory (engine.kv_type " +
                    std::string(config::to_string(engine.kv_type)) + ", engine.max_batch " +
                    std::to_string(batch.most) + ")\n";
  out += "  weights          " + in_mib(need.weights);
  if (with_units.weights != need.weights)
    out += "; " + in_mib(with_units.weights) + " on a GPU with matrix units";
  out += "\n";
  out += "  keys and values  " + std::to_string(need.kv.per_token) + " bytes a token, ";
  if (need.kv.window > 0)
    out += "and " + std::to_string(need.kv.per_window_token) + " for each of the last " +
           std::to_string(need.kv.window) + ", ";
  out += in_mib(need.kv.bytes(graph.context)) + " for one sequence of the whole context (" +
         std::to_string(graph.context) + ")\n";
  if (need.states > 0) {
    out += "  states           " + in_mib(need.states) +
           " for running sequences, guesses and saved ones";
    const std::uint64_t most = forward::most_states_need(graph, engine);
    if (most > need.states)
      out += "; up to " + in_mib(most) + " on a GPU of more than 32 GiB (engine.state_cache_mb)";
    out += "\n";
  }
  out += "  working memory   " + in_mib(need.transient) + ", and up to " +
         in_mib(need.host_logits) + " of the host's for masks and where it chooses tokens\n";
  if (batch.most == batch.least) return out;
  engine.max_batch = batch.least;
  BULKHEAD_TRY(const forward::MemoryNeed least, forward::memory_need(file, graph, engine));
  const std::string least_batch = std::to_string(batch.least);
  out += "engine.max_batch: 0 becomes " + std::to_string(batch.most) + " on a GPU of " +
         in_mib(batch.memory_bytes) + " and more. A smaller one gets fewer, " + least_batch +
         " at least; a CPU device gets " + least_batch + ". With " + least_batch + ":\n";
  if (least.states > 0) out += "  states           " + in_mib(least.states) + "\n";
  return out + "  working memory   " + in_mib(least.transient) + ", and up to " +
         in_mib(least.host_logits) + " of the host's\n";
}

// Says on which devices of this computer the model fits, and with which context. A computer without devices can still
// inspect files.
std::string devices_text(const model::GgufFile& file, const model::ModelGraph& graph) {
  std::string out = "\nDevices here, by what is free now\n";
  const auto devices = gpu::list_devices();
  if (!devices.ok()) return out + "  none: " + devices.error().message() + "\n";
  const Result<ModelFit> fit = model_fit(file, graph, *devices);
  return out + (fit.ok() ? fit->text : "  " + fit.error().message() + "\n");
}

}  // namespace

int run_tokenize(const TokenizeOptions& options) {
  const auto file = model::GgufFile::open(options.model);
  if (!file.ok()) return fail(file.error());
  const auto tokenizer = model::Tokenizer::from_gguf(**file);
  if (!tokenizer.ok()) return fail(tokenizer.error().within(options.model));

  Result<std::string> text = read_stdin();
  if (!text.ok()) return fail(text.error());

  const bool special = !options.no_special;
  const std::vector<model::TokenId> ids = (*tokenizer)->encode(*text, special, special);
  *text = {};
  if (options.pieces) return put_pieces(**tokenizer, ids) ? 0 : 1;
  // The text is read in pieces, because the ids of a long text take several times its bytes.
  constexpr std::size_t kPieceBytes = 1U << 16;
  std::string piece;
  piece.reserve(kPieceBytes + 16);
  const char* separator = "";
  char digits[16];
  for (const model::TokenId id : ids) {
    piece += separator;
    piece.append(digits, std::to_chars(digits, digits + sizeof digits, id).ptr);
    separator = " ";
    if (piece.size() < kPieceBytes) continue;
    if (!put(piece)) return 1;
    piece.clear();
  }
  piece += '\n';
  return put(piece) ? 0 : 1;
}

int run_inspect(const InspectOptions& options) {
  const auto file = model::GgufFile::open(options.file);
  if (!file.ok()) return fail(file.error());
  if (options.json) {
    const Result<nlohmann::json> facts = inspect_json(**file, options.tensors);
    if (!facts.ok()) return fail(facts.error());
    return put_json(*facts) ? 0 : 1;
  }
  const Result<std::string> text = model::describe(**file, options.tensors);
  if (!text.ok()) return fail(text.error());
  std::string out = cleaned_lines(*text);

  // Vocabulary-only files, and models that can't run here, have no memory need; describe() has said
  // why.
  const Result<model::ModelGraph> graph = model::read_model(**file);
  if (graph.ok()) {
    const Result<std::string> memory = memory_text(**file, *graph);
    if (!memory.ok()) return fail(memory.error());
    out += *memory;
    out += devices_text(**file, *graph);
  }
  return put(out) ? 0 : 1;
}

}  // namespace bulkhead::cli
