// out = max(in, 0)^2 (So et al. 2021, arXiv 2109.08668), which feed-forwards without a gate have as their function.
#pragma once

#include "worker/model/entrywise.hpp"

namespace bulkhead::model {

struct SquaredRelu : Entrywise {};

}  // namespace bulkhead::model
