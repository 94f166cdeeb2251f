// The architectures that Bulkhead computes. Each one is a file in architectures/, which the build finds by itself.
// The file ends with BULKHEAD_ARCHITECTURE(SYMBOL, "NAME", describe_SYMBOL), where NAME is general.architecture and
// SYMBOL is the file's name (with '_' for '-').
#pragma once

#include <functional>
#include <span>
#include <string>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::model {

class GraphBuilder;

struct Architecture {
  const char* name;
  // Reads the hyperparameters and lists tensors and operations. The builder keeps errors.
  void (*describe)(GraphBuilder& model);
  // Whether the function goes through GraphBuilder::layers(), and so describes the block that drafts tokens as well.
  bool drafts = false;
};
inline constexpr bool kDrafts = true;  // for the macro below

// Ends an architecture's file. kDrafts may follow.
#define BULKHEAD_ARCHITECTURE(symbol, name, describe, ...) \
  extern const Architecture kArchitecture_##symbol;        \
  const Architecture kArchitecture_##symbol {              \
    name, describe __VA_OPT__(, ) __VA_ARGS__              \
  }

// Returns them sorted by name.
std::span<const Architecture* const> architectures();
// Returns "llama, qwen2, qwen3".
std::string architecture_names();

// Reads and checks a model: every hyperparameter must be plausible, every required tensor must be there with the
// right shape and a type that can be computed, and no tensor may be left over that would change the result. For an
// unsupported architecture the error names it and lists the supported ones.
Result<ModelGraph> read_model(const GgufFile& file);

// Reads the block behind a model's layers that drafts tokens (multi-token prediction, graph_draft.cpp). kUnsupported:
// the file has none, or Bulkhead does not compute the one of its architecture.
Result<ModelGraph> read_drafting_block(const GgufFile& file);

// Returns the graph of a model that does not exist yet, for make-model. `file` has only the hyperparameters. Every
// required tensor counts as present, and an optional one if `has(name)` returns true.
Result<ModelGraph> imagine_model(const GgufFile& file,
                                 std::function<bool(const std::string& name)> has);
// Does the same for the block that drafts tokens.
Result<ModelGraph> imagine_drafting_block(const GgufFile& file,
                                          std::function<bool(const std::string& name)> has);

}  // namespace bulkhead::model
