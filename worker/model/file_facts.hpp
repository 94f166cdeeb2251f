// What lists of models say about a model's file: its size and its number formats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/model/gguf.hpp"

namespace bulkhead::model {

struct FileFacts {
  std::uint64_t parameters = 0;  // weights of all tensors
  // general.size_label ("30B-A3B"), or the parameters in this form ("7.6B"); empty: there are no tensors.
  std::string size;
  // The name of general.file_type ("Q4_K_M"), or of the type that most of the tensors' bytes have; empty: there are no
  // tensors.
  std::string quantization;
};

FileFacts facts_of(const GgufFile& file);

// What the file recommends for samplers (general.sampling.*), by the names that requests have. Values that make no
// sense are left out.
struct SamplerAdvice {
  const char* name = "";
  double value = 0;
};
std::vector<SamplerAdvice> sampler_advice(const GgufFile& file);

}  // namespace bulkhead::model
