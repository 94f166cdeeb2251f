// The names of the models in the fixtures' folder that Bulkhead computes, for tests that go through all of them.
#pragma once

namespace bulkhead::test {

inline constexpr const char* kFixtureModels[] = {
    "tiny-llama-F16",        "tiny-llama-Q8_0",      "tiny-llama-Q4_0",
    "tiny-llama-Q4_K_M",     "tiny-llama-Q5_K_M",    "tiny-qwen2-Q8_0",
    "tiny-qwen2-Q4_0",       "tiny-qwen2-Q4_K_M",    "tiny-qwen3-BF16",
    "tiny-qwen3-Q5_K_M",     "tiny-qwen3-Q4_K_M",    "tiny-qwen3-IQ4_NL",
    "tiny-phi3-long-Q4_K_M", "tiny-phi3-short-Q8_0", "tiny-granite-Q4_K_M",
    "tiny-smollm3-Q4_K_M",   "tiny-olmo2-Q4_K_M",    "tiny-glm4-Q4_K_M",
    "tiny-2bit-Q2_K",        "tiny-3bit-Q3_K_M",     "tiny-4bit-IQ4_XS",
    "tiny-i3-IQ3_S",         "tiny-i2-IQ2_M",        "tiny-gemma2-Q5_K_M",
    "tiny-gemma3-Q4_K_M",    "tiny-gemma4-Q4_K_M",   "tiny-gemma4moe-Q8_0",
    "tiny-qwen3moe-Q4_K_M",  "tiny-qwen3moe-Q8_0",   "tiny-mixtral-Q5_K_S",
    "tiny-gpt-oss-MXFP4",    "tiny-deepseek2-Q8_0",  "tiny-deepseek2-yarn-Q4_K_M",
    "tiny-qwen35-Q4_K_M",    "tiny-qwen35moe-Q8_0",
};

// One model of each family with a special kind of attention, cache or feed-forward: sinks and biased experts;
// windows; heads of two sizes, shared keys and an input for each layer; experts; latents; states.
inline constexpr const char* kFamilies[] = {
    "tiny-gpt-oss-MXFP4", "tiny-gemma3-Q4_K_M",         "tiny-gemma4-Q4_K_M",
    "tiny-qwen3moe-Q8_0", "tiny-deepseek2-yarn-Q4_K_M", "tiny-qwen35-Q4_K_M",
};

}  // namespace bulkhead::test
