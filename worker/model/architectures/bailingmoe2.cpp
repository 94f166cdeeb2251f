// Ling and Ring 2.0 (Ling team 2025, arXiv 2510.22115): the graph of dots.llm1, in which a part of each head turns, q,
// k and v are one tensor, and experts may be chosen within groups.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(bailingmoe2, "bailingmoe2", describe_dots1);

}  // namespace bulkhead::model
