#ifndef FUSED_OPERANDS
#define FUSED_OPERANDS
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer FusedRef {
#include "fields/fused_operands.glsl"
};
#endif
