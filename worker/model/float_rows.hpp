// Decodes weights to floats on the host: small tensors that no device computes with, and what is
// packed in another type than the file's. Scales and minima of groups, if the type has them, are
// rounded to halves, as devices with matrix units take them (gpu/kernels/weight_layout.hpp). The
// tensor's type must be one that has traits().
#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/gguf.hpp"

namespace bulkhead::model {

// Returns all rows, one after another.
std::vector<float> float_rows(const TensorInfo& tensor);

// Writes the 32 weights of a row from entry 32 * group on.
using GroupDecoder = void (*)(const std::uint8_t* row, std::uint64_t group, float* to);
GroupDecoder group_decoder(TensorType type);

}  // namespace bulkhead::model
