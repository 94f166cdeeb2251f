// Nemotron 3 Nano (NVIDIA 2025, huggingface.co/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16): Nemotron-H with experts, as
// nemotron_h.cpp explains.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(nemotron_h_moe, "nemotron_h_moe", describe_nemotron_h);

}  // namespace bulkhead::model
