// ERNIE 4.5's dense models (Baidu 2025, "ERNIE 4.5 Technical Report"): Llama's graph.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(ernie4_5, "ernie4_5", describe_llama);

}  // namespace bulkhead::model
