// What a quantised block means, in double and straight from the format's definition: shares no code
// with the product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gpu/kernels/kernels.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::forward::reference {

// Every type that has a row.
inline std::vector<model::TensorType> all_types() {
  std::vector<model::TensorType> types;
  for (const gpu::kernels::TensorRow& row : gpu::kernels::kTensorRows)
    types.push_back(static_cast<model::TensorType>(row.id));
  return types;
}

std::vector<double> dequantize(model::TensorType type, std::span<const std::byte> row,
                               std::size_t width);

// A block of the types of less than four bits and of those with scales of their own kind
// (reference_low_bits.cpp); false: another type.
bool low_bits(model::TensorType type, const std::uint8_t* block, double* y);

// Blocks of random bits with sane scales.
std::vector<std::byte> random_rows(model::TensorType type, std::size_t rows, std::size_t width,
                                   std::mt19937& random);

double half(std::uint16_t bits);

// A gate's activation times its up.
double gated(gpu::kernels::Gate function, double gate, double up);
inline constexpr gpu::kernels::Gate kGates[] = {
    gpu::kernels::Gate::kSilu,        gpu::kernels::Gate::kGelu,    gpu::kernels::Gate::kSigmoid,
    gpu::kernels::Gate::kSquaredRelu, gpu::kernels::Gate::kSiluTo7, gpu::kernels::Gate::kSiluTo16};

}  // namespace bulkhead::forward::reference
