// The dispatches of a plan's steps of experts (gpu/kernels/experts.hpp), for step_program.cpp. No
// route is read back by the host: how many tiles there are is known on the device alone.
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "gpu/kernels/experts.hpp"
#include "worker/forward/step_part.hpp"

namespace bulkhead::forward {

class ExpertSteps : public StepPart {
 public:
  using StepPart::StepPart;

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
};

}  // namespace bulkhead::forward
