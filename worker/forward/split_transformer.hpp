// A model whose layers are shared by several devices of one machine: one device computes the first layers, another
// the next ones, and so on. The residual stream goes from one device to the next through the host's memory, as
// float32. All of it belongs to one process, and the engine sees one executor.
//
//     submit(step)  ->  stage 0  --rows of the stream-->  stage 1  -->  ...  -->  wait(): outputs
//
// Each stage has one step at a time, and as many steps are in flight as there are stages: while one device computes a
// step's later layers, the device before it computes the next step. Each stage gets all steps in their order, so its
// KV pages see what they would see on a single device. A stage computes the same bits as these layers do in the whole
// model.
//
// A column can't take its token from a step in flight (ExecutorLimits::hands_tokens_on), because the last stage
// chooses the token and the first stage needs it.
#pragma once

#include <memory>
#include <span>

#include "config/base/error.hpp"
#include "worker/forward/transformer.hpp"

namespace bulkhead::forward {

// Like make_transformer. `devices` has at least two devices, which must outlive the result. The same physical device
// may be in it several times, opened as often.
Result<std::unique_ptr<Transformer>> make_split_transformer(std::span<gpu::Device* const> devices,
                                                            const model::GgufFile& file,
                                                            const model::ModelGraph& graph,
                                                            const TransformerOptions& options);

}  // namespace bulkhead::forward
