// `bulkhead inspect --json`: prints the facts of worker/model/inspect.hpp as JSON for programs.
#include "tools/cli/inspect_json.hpp"

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "config/settings.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/file_facts.hpp"
#include "worker/model/ranking.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

json shape_of(const model::TensorInfo& tensor) {
  json shape = json::array();
  for (std::uint32_t d = 0; d < tensor.dimensions; ++d)
    shape.push_back(tensor.ne[d]);
  return shape;
}

json tensors_of(const model::GgufFile& file) {
  json tensors = json::array();
  for (const model::TensorInfo& tensor : file.tensors()) {
    tensors.push_back({{"name", tensor.name},
                       {"type", model::traits(tensor.type)->name},
                       {"shape", shape_of(tensor)},
                       {"bytes", tensor.data.size()}});
  }
  return tensors;
}

json metadata_of(const model::GgufFile& file) {
  json metadata = json::array();
  for (const auto& entry : file.metadata())
    metadata.push_back({{"key", entry.key}, {"type", entry.type}, {"value", entry.value}});
  return metadata;
}

// Returns the device memory, in bytes, for the largest batch that engine.max_batch: 0 can choose.
Result<json> memory_of(const model::GgufFile& file, const model::ModelGraph& graph) {
  config::EngineSettings engine;
  engine.max_batch = forward::usual_batch(engine, file, graph).most;
  BULKHEAD_TRY(const forward::MemoryNeed need, forward::memory_need(file, graph, engine));
  BULKHEAD_TRY(const forward::MemoryNeed with_units,
               forward::memory_need(file, graph, engine, true));
  return json{{"weights", need.weights},
              {"weights_with_matrix_units", with_units.weights},
              {"kv_of_a_token", need.kv.per_token},
              {"kv_of_the_context", need.kv.bytes(graph.context)},
              {"states", need.states},
              {"states_most", forward::most_states_need(graph, engine)},
              {"working_memory", need.transient},
              {"host_memory", need.host_logits},
              {"max_batch", engine.max_batch}};
}

}  // namespace

Result<json> inspect_json(const model::GgufFile& file, bool tensors) {
  const model::FileFacts facts = model::facts_of(file);
  json out = {{"file", file.name()},
              {"format", "GGUF v" + std::to_string(file.version())},
              {"bytes", file.file_bytes()},
              {"runs", false},
              {"tensor_count", file.tensors().size()},
              {"parameters", facts.parameters},
              {"size", facts.size},
              {"quantization", facts.quantization},
              {"metadata", metadata_of(file)}};
  if (tensors) out["tensors"] = tensors_of(file);
  const Result<model::ModelGraph> graph = model::read_model(file);
  if (!graph.ok()) {
    if (graph.error().code() == ErrorCode::kCorrupt) return graph.error();
    out["why_not"] = graph.error().message();
  } else {
    BULKHEAD_TRY(json memory, memory_of(file, *graph));
    out["memory_bytes"] = std::move(memory);
    out["runs"] = true;
    out["architecture"] = graph->architecture;
    out["layers"] = graph->layers.size();
    out["embedding"] = graph->embedding;
    out["vocabulary"] = graph->vocabulary;
    out["context"] = graph->context;
    out["ranks"] = model::has_rank_head(file);
  }
  if (!file.has("tokenizer.ggml.model")) return out;
  const auto tokenizer = model::Tokenizer::from_gguf(file);
  if (!tokenizer.ok() && tokenizer.error().code() == ErrorCode::kCorrupt) return tokenizer.error();
  if (tokenizer.ok()) out["tokens"] = (*tokenizer)->size();
  return out;
}

}  // namespace bulkhead::cli
