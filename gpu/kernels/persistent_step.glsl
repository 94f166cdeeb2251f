// All layers of a step in one dispatch: every workgroup runs through the operations that the dispatched kernels would be,
// with the same functions and so to the same bits, and waits for all others between them.
//
// There are no more workgroups than run at the same time: the host has tried how many do (`present`, `peak`). Still every
// wait is bounded: who has waited too long says so in `failed`, all leave, and the host does without this kernel.
//
// Everything that one workgroup writes and another reads is nonprivate memory; before arriving at a barrier a workgroup
// releases what it wrote to the device's scope, and after leaving it acquires what the others did.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require

layout(push_constant, std430) uniform StepPush {
  uint64_t program;  // [operations] of kOperationBytes
  uint64_t sync;
  uint64_t parameters;
  uint operations;   // 0: only tell how many workgroups run at the same time
  uint phases;
  uint workgroups;
} step;

layout(constant_id = 20) const uint kColumns = 1;
layout(constant_id = 21) const uint kInvocations = 128;
layout(constant_id = 22) const uint kMostSpins = 1000000;
const uint kProbeSpins = 20000;
layout(constant_id = 23) const uint kInputForm = 1;
layout(local_size_x_id = 21) in;

layout(buffer_reference, std430, buffer_reference_align = 4) nonprivate buffer SyncRef {
  uint arrived;
  uint failed;
  uint present;
  uint peak;
};

const uint kOperationBytes = 128;
const uint kProduct = 0, kAttention = 1;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer HeadRef {
  uvec4 head;  // kind, slot, phases that must be over, whether it ends one
};

struct ProductPush {
  uint64_t quants, high, scales, supers;
  uint64_t x;
  uint64_t out_address;
  uint64_t parameters;
  uint rows;
  uint groups;
  uint x_stride;
  uint out_stride;
  uint written_rows;
  uint count_word;
  uint64_t fused;
  uint split;           // subgroups that share a row
  uint segment_stages;  // matrix units
  uint epilogue;
  uint scaling;
  uint out_form;
  uint unused;
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer ProductRef {
  uvec4 head;
  ProductPush fields;
};
struct AttentionPush {
  uint64_t q;
  uint64_t keys;
  uint64_t values;
  uint64_t parameters;
  uint64_t pages;
  uint64_t out_address;
  uint out_stride;
  uint padded_width;
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer AttentionRef {
  uvec4 head;
  AttentionPush fields;
};

ProductPush product;
AttentionPush attention;

shared uint leaving;
uint waited = 0u;

// All invocations; false: leave. An operation of the same phase as the last one only waits for its own workgroup.
bool wait_for(uint phases) {
  uint arrivals = phases * step.workgroups;
  if (phases == waited) {
    barrier();
    return true;
  }
  waited = phases;
  if (gl_LocalInvocationIndex == 0u) {
    SyncRef sync = SyncRef(step.sync);
    uint spins = 0u;
    bool give_up = false;
    while (!give_up &&
           atomicLoad(sync.arrived, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed) < arrivals) {
      spins++;
      if ((spins & 255u) == 0u &&
          atomicLoad(sync.failed, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed) != 0u) {
        give_up = true;
      }
      if (spins >= kMostSpins) {
        atomicStore(sync.failed, 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
        give_up = true;
      }
    }
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
    leaving = give_up ? 1u : 0u;
  }
  controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                 gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
  return leaving == 0u;
}

void arrive() {
  controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                 gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
  if (gl_LocalInvocationIndex == 0u) {
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease | gl_SemanticsMakeAvailable);
    uint before = atomicAdd(SyncRef(step.sync).arrived, 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
    // The last one of all leaves the count as the next step expects it.
    if (before + 1u == step.phases * step.workgroups) {
      atomicStore(SyncRef(step.sync).arrived, 0u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
    }
  }
}

#define push product
#define EPILOGUE push.epilogue
#define SCALING push.scaling
#define OUT_FORM push.out_form
#define INPUT_FORM kInputForm
#define SPLIT push.split
#define SQUARES_EACH_BLOCK false
#include "page_tokens.glsl"
#include "epilogue.glsl"
#include "norm_scale.glsl"

layout(constant_id = 0) const uint kLanes = 8;
const uint kSubgroups = kInvocations / kLanes;
// Two rooms, so that one block's sums may be written while another's are still read.
const uint kRoom = kSubgroups * PERSISTENT_SUMS;
shared float partials[kRoom * 2u];
shared float norm_parts[kNormParts * kColumns];

// The squares of the residual stream's columns, once for a product: norm_scale.glsl's order.
void sum_stream_squares(FusedRef fused, uint count) {
  for (uint part = gl_SubgroupID; part < kNormParts; part += kSubgroups) {
    for (uint c = 0; c < min(count, kColumns); c++) {
      precise float sum = 0.0;
      for (uint quad = part * kLanes + gl_SubgroupInvocationID; quad * 4u < fused.stream_width;
           quad += kNormParts * kLanes) {
        vec4 v = Vec4s(fused.stream + uint64_t(c) * fused.stream_stride * 4u).v[quad];
        [[unroll]] for (uint i = 0; i < 4; i++) {
          float entry = quad * 4u + i < fused.stream_width ? v[i] : 0.0;
          sum = fma(entry, entry, sum);
        }
      }
      [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
        sum = sum + subgroupShuffleXor(sum, distance);
      }
      if (gl_SubgroupInvocationID == 0u) norm_parts[part * kColumns + c] = sum;
    }
  }
}

#include "persistent_names.glsl"
#define SLOT 0
#include "persistent_slot.glsl"
#undef SLOT
#define SLOT 1
#include "persistent_slot.glsl"
#undef SLOT
#define SLOT 2
#include "persistent_slot.glsl"
#undef SLOT
#define SLOT 3
#include "persistent_slot.glsl"
#undef SLOT
#define SLOT 4

#undef push
#define push attention
#include "kv_layout.glsl"
#define BULKHEAD_HAS_LANES
#include "attention_state.glsl"
shared float room[kSubgroups * kPartialFloats];
#define SEVERAL_ROUNDS true
#include "attention.glsl"

void main() {
  SyncRef sync = SyncRef(step.sync);
  if (step.operations == 0u) {
    // Waits for its time, and tells how many were there at once.
    if (gl_LocalInvocationIndex == 0u) {
      uint others = atomicAdd(sync.present, 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
      atomicMax(sync.peak, others + 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
      for (uint spins = 0; spins < kProbeSpins; spins++) {
        if (atomicLoad(sync.present, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed) >= step.workgroups) {
          break;
        }
      }
    }
    barrier();
    if (gl_LocalInvocationIndex == 0u) {
      atomicAdd(sync.present, 0xffffffffu, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
    }
    return;
  }
  uint count = Words(step.parameters).v[0];
  bool going = true;
  for (uint operation = 0; operation < step.operations && going; operation++) {
    uint64_t at = step.program + uint64_t(operation) * kOperationBytes;
    uvec4 head = HeadRef(at).head;
    if (head.x == kProduct) {
      product = ProductRef(at).fields;
      if (head.y == 0u) {
        going = run_product_0(head.z, count);
      } else if (kUsed_1 != 0u && head.y == 1u) {
        going = run_product_1(head.z, count);
      } else if (kUsed_2 != 0u && head.y == 2u) {
        going = run_product_2(head.z, count);
      } else if (kUsed_3 != 0u) {
        going = run_product_3(head.z, count);
      }
    } else {
      attention = AttentionRef(at).fields;
      going = wait_for(head.z);
      for (uint item = gl_WorkGroupID.x; going && item < count * kHeads; item += step.workgroups) {
        uint column = item / kHeads;
        uvec4 info = ColumnsRef(attention.parameters + 64u).v[column];
        attend_together(column, item % kHeads, info.y + 1u, info.z);
        barrier();
      }
    }
    if (going && head.w != 0u) arrive();
  }
}
