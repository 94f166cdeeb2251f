// Says what a model's file holds: to the daemon when the model is loaded, and in a process of its own for models that
// are listed but not loaded, because the daemon reads no model file.
#pragma once

#include "ipc/process_messages.hpp"
#include "worker/engine/preparer.hpp"
#include "worker/main_load.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::worker {

// Fills in the fields that depend on the files alone: names, size, template and capabilities.
void describe_model(const model::GgufFile& file, const model::ModelGraph& graph,
                    const engine::Language& language, ipc::Ready& ready);

// Reads the metadata of `arguments.model` and writes one message to stdout: Ready, or Fatal with the reason why the
// model can't be served. Opens no device. Returns the program's exit code.
int describe_file(const Arguments& arguments);

}  // namespace bulkhead::worker
