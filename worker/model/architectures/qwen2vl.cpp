// The language models of Qwen2-VL and Qwen2.5-VL (Wang et al. 2024, arXiv 2409.12191; Bai et al. 2025, arXiv
// 2502.13923). Sections of their heads turn by time, height and width, which are equal in a text, so a text's tokens
// are those of Qwen 2's graph.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(qwen2vl, "qwen2vl", describe_qwen2);

}  // namespace bulkhead::model
