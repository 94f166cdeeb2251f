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
  Status multiply(const ExpertProductsStep& step, const ProductStep& product);
  // Returns everything but routes, tiles and the place of the results.
  gpu::kernels::ExpertPush push_of(const ProductStep& product,
                                   const gpu::kernels::MatvecShape& shape) const;
};

}  // namespace bulkhead::forward
