// A model whose layers several devices of one machine share: the first layers are computed by one device, the next ones
// by another, and so on. The residual stream goes from one to the next through the host's memory, as float32. All of it
// belongs to one process, and to the engine it is one executor.
//
//     submit(step)  ->  stage 0  --rows of the stream-->  stage 1  -->  ...  -->  wait(): outputs
//
// Each stage has one step at a time, and as many steps are in flight as there are stages: while one device computes a
// step, the one before it computes the next. Each stage gets all steps in their order, so that its KV pages see what
// they would see on a single device. A stage computes the same bits as these layers do in the whole model.
//
// A column can't take its token from a step in flight (ExecutorLimits::hands_tokens_on): the last stage chooses the
// token, and the first one needs it.
#pragma once

#include <memory>
#include <span>

#include "config/base/error.hpp"
#include "worker/forward/transformer.hpp"

namespace bulkhead::forward {

// As make_transformer. The devices, at least two, must outlive the result; the same physical device may be there more
// than once, opened as often.
Result<std::unique_ptr<Transformer>> make_split_transformer(std::span<gpu::Device* const> devices,
                                                            const model::GgufFile& file,
                                                            const model::ModelGraph& graph,
                                                            const TransformerOptions& options);

}  // namespace bulkhead::forward
