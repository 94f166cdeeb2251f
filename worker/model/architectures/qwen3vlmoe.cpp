// The language models of Qwen3-VL's mixtures of experts (Bai et al. 2025, arXiv 2511.21631), such as
// Qwen3-VL-30B-A3B. As in qwen3vl.cpp, a text's tokens are those of the graph without images.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(qwen3vlmoe, "qwen3vlmoe", describe_qwen3moe);

}  // namespace bulkhead::model
