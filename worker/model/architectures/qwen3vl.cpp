// The language models of Qwen3-VL (Bai et al. 2025, arXiv 2511.21631). A text's tokens are those of Qwen 3's graph: the
// sections of its heads turn by equal positions, and only images add something to the first layers' results.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(qwen3vl, "qwen3vl", describe_qwen3);

}  // namespace bulkhead::model
