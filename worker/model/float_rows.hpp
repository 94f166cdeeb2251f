// Decodes a tensor to floats on the host. Only for small tensors that no device computes with.
#pragma once

#include <vector>

#include "worker/model/gguf.hpp"

namespace bulkhead::model {

// Returns all rows, one after another. Scales and minima of groups, if the type has them, are rounded to halves, as
// devices with matrix units take them (gpu/kernels/weight_layout.hpp). The tensor's type must be one that has
// traits().
std::vector<float> float_rows(const TensorInfo& tensor);

}  // namespace bulkhead::model
