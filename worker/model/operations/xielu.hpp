// xIELU (Huang and Schlag 2024, arXiv 2411.13010), the function of a feed-forward without a gate:
//   x > 0:   out = positive * x^2 + beta * x
//   x <= 0:  out = negative * (exp(min(x, least)) - 1 - x) + beta * x
#pragma once

#include "worker/model/entrywise.hpp"

namespace bulkhead::model {

struct Xielu : Entrywise {
  float positive = 0, negative = 0, beta = 0, least = 0;

  void fill(auto& step) const {
    Entrywise::fill(step);
    step.push.positive = positive;
    step.push.negative = negative;
    step.push.beta = beta;
    step.push.least = least;
  }
};

}  // namespace bulkhead::model
