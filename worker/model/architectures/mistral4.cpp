// Mistral Small 4 (Mistral AI 2026, huggingface.co/mistralai/Mistral-Small-4-119B-2603): the graph of DeepSeek-V3, with
// experts that a softmax chooses.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(mistral4, "mistral4", describe_deepseek2);

}  // namespace bulkhead::model
