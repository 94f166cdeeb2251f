// InternLM2 and 2.5 (InternLM team 2024, arXiv 2403.17297): the graph of llama.cpp.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(internlm2, "internlm2", describe_llama);

}  // namespace bulkhead::model
