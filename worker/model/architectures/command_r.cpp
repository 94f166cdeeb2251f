// Command R and R+, Aya 23 and Aya Expanse (Cohere 2024, huggingface.co/CohereForAI/c4ai-command-r-v01): the graph of
// cohere2.cpp without windows.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(command_r, "command-r", describe_cohere2);

}  // namespace bulkhead::model
