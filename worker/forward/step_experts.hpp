// The dispatches of a plan's steps of experts (gpu/kernels/experts.hpp), for step_program.cpp. No
// route is read back by the host: how many tiles there are is known on the device alone.
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "gpu/kernels/experts.hpp"
#include "worker/forward/step_buffers.hpp"
#include "worker/forward/step_context.hpp"
#include "worker/forward/step_emitter.hpp"

namespace bulkhead::forward {

// For a step of up to `columns` columns in `slot`. Everything must outlive it.
class ExpertSteps {
 public:
  ExpertSteps(const StepContext& context, const Activations& activations, std::uint32_t columns,
              std::uint32_t slot, StepEmitter& emit)
      : context_(context), activations_(activations), columns_(columns), slot_(slot), emit_(emit) {}

  Status add(const RouteStep& step);
  Status add(const ExpertProductsStep& step);
  Status add(const SliceProductStep& step);
  Status add(const MixStep& step);

 private:
  bool chooses_in_products(const model::Router& router) const;
  Status multiply(const ExpertProductsStep& step, const ProductStep& product);
  // All but routes, tiles and where results lie.
  gpu::kernels::ExpertPush push_of(const ProductStep& product,
                                   const gpu::kernels::MatvecShape& shape) const;
  std::uint32_t stride(model::ActivationIndex activation) const {
    return stride_of(context_, activation);
  }
  std::uint64_t at(model::ActivationIndex activation) const { return activations_.at(activation); }

  const StepContext& context_;
  const Activations& activations_;
  const std::uint32_t columns_, slot_;
  StepEmitter& emit_;
};

}  // namespace bulkhead::forward
