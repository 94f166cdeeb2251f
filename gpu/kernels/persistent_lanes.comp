// persistent_step.glsl with products by a subgroup's lanes.
#version 460
#pragma use_vulkan_memory_model
#extension GL_KHR_memory_scope_semantics : require
#define BULKHEAD_IN nonprivate
#define BULKHEAD_OUT nonprivate
#define BULKHEAD_WIDE_LOADS
#include "common.glsl"
#define PERSISTENT_SUMS 32u
#include "persistent_step.glsl"
