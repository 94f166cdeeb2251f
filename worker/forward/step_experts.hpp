// Makes the dispatches of a plan's steps with experts (gpu/kernels/experts.hpp) for step_program.cpp. The host never
// reads routes back: only the device knows the number of tiles.
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
  // Returns whether one kernel computes the downs (MixStep::summed_down) and adds up their results.
  bool sums(const model::Router& router, MatrixIndex down) const;
  gpu::kernels::MatvecShape shape_of(const model::Router& router, const ProductStep& product) const;
  // The products of an ExpertProductsStep or a MixStep. kByRoute: the routes name the experts.
  Status multiply(const model::Router& router, model::ActivationIndex routes,
                  const ProductStep& product, gpu::kernels::ChoosesHere chooses);
  Status multiply_and_sum(const MixStep& step);
  Status mix(const MixStep& step);
  // Returns everything but routes, tiles and the place of the results.
  gpu::kernels::ExpertPush push_of(const ProductStep& product,
                                   const gpu::kernels::MatvecShape& shape) const;
};

}  // namespace bulkhead::forward
