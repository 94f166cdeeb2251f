// persistent_step.glsl with products by matrix units.
#version 460
#pragma use_vulkan_memory_model
#extension GL_KHR_memory_scope_semantics : require
#define BULKHEAD_IN nonprivate
#define BULKHEAD_OUT nonprivate
#define BULKHEAD_UNITS
#include "common.glsl"
#include "units.glsl"
layout(constant_id = 24) const uint kColumnTiles = 1;  // of 8 columns
layout(constant_id = 25) const uint kStepGroups = 4;
const uint kAhead = 0;
#define PERSISTENT_SUMS (kMostTiles * 128u)
layout(constant_id = 26) const uint kMostTiles = 2;  // of a subgroup
#include "persistent_step.glsl"
