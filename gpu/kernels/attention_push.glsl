// The push constants of attention.
layout(push_constant, std430) uniform Push {
#include "fields/attention_push.glsl"
#include "fields/chain_push.glsl"
} push;
