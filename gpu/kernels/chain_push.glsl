// The first thing that a kernel includes which may be a link of a chain (chain.glsl).
#ifdef BULKHEAD_CHAINED
#pragma use_vulkan_memory_model
#extension GL_KHR_memory_scope_semantics : require
#define BULKHEAD_IN nonprivate
#define BULKHEAD_OUT nonprivate
// gpu/kernels/kernels.hpp: ChainPush. Expected: workgroups of the link before; 0: there is none.
#define CHAIN_PUSH uint64_t chain_counts; uint64_t chain_failed; uint chain_link; uint chain_expected;
#else
#define CHAIN_PUSH
#endif
