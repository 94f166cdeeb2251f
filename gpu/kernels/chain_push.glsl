// A kernel that may be a link of a chain (chain.glsl) includes this file first.
#ifdef BULKHEAD_CHAINED
#pragma use_vulkan_memory_model
#extension GL_KHR_memory_scope_semantics : require
#endif
