// The architectures that Bulkhead computes. Each is one file in architectures/, which the build
// finds by itself: it ends with BULKHEAD_ARCHITECTURE(SYMBOL, "NAME", describe_SYMBOL), where NAME is
// general.architecture and SYMBOL the file's name (a '-' is a '_').
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
  // Reads the hyperparameters and lists tensors and operations. Errors are kept by the builder.
  void (*describe)(GraphBuilder& model);
};

// Ends an architecture's file.
#define BULKHEAD_ARCHITECTURE(symbol, name, describe) \
  extern const Architecture kArchitecture_##symbol;   \
  const Architecture kArchitecture_##symbol {         \
    name, describe                                    \
  }

// By name, rising.
std::span<const Architecture* const> architectures();
// "llama, qwen2, qwen3"
std::string architecture_names();

// Reads and checks a model: every hyperparameter sane, every needed tensor there with the right
// shape and a computable type, none left over that would change the result. An unsupported
// architecture is named, with the list of supported ones.
Result<ModelGraph> read_model(const GgufFile& file);

// The graph of a model that does not exist yet, for make-model: `file` has the hyperparameters
// alone, and every tensor is taken to be there, but of the optional ones only those for which
// `has(name)` is true.
Result<ModelGraph> imagine_model(const GgufFile& file,
                                 std::function<bool(const std::string& name)> has);

}  // namespace bulkhead::model
