// EXAONE 3 and 3.5 (LG AI Research 2024, arXiv 2408.03541 and 2412.04862): the graph of qwen2.cpp.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(exaone, "exaone", describe_qwen2);

}  // namespace bulkhead::model
