// Ling and Ring 2.0 (Ling team 2025, arXiv 2510.22115) have the graph of dots.llm1. RoPE rotates only a part of each
// head. One tensor holds q, k and v. The router may choose experts within groups.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(bailingmoe2, "bailingmoe2", describe_dots1);

}  // namespace bulkhead::model
