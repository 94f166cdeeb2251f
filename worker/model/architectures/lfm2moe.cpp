// LFM2's mixtures of experts, such as LFM2-8B-A1B (Liquid AI 2025, arXiv 2511.23404): lfm2.cpp describes them.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(lfm2moe, "lfm2moe", describe_lfm2);

}  // namespace bulkhead::model
