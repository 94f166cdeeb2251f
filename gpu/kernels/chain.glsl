// Kernels of a step that are dispatched without barriers between them: a kernel's workgroups start as soon as the
// kernel before leaves room for them, load their weights, and only then wait for the results that they need.
//
// Each kernel is a link. Each of its workgroups increments a counter in device memory when it is done, even if it had
// nothing to do; the next link's workgroups wait until all of them have. So a workgroup that is past its wait sees
// everything that any earlier link wrote. On a device that starts a dispatch's workgroups before all of the one
// before have started, the wait could be in vain. Therefore waits are bounded: a workgroup that has waited too long
// sets `failed`, and the host computes the step again with barriers.
//
// Without BULKHEAD_CHAINED all of this does nothing. A kernel includes chain_push.glsl before everything else and
// does its work in a separate function. It calls chain_wait() before it reads what other kernels write (false: don't
// work), and ends with chain_arrive().
#ifdef BULKHEAD_CHAINED
layout(buffer_reference, std430, buffer_reference_align = 4) nonprivate buffer ChainRef { uint word; };
const uint kChainMostSpins = 1000000;
// A counter has its own cache line.
#define CHAIN_COUNT(link) ChainRef(push.chain_counts + (link) * 128u)

shared uint chain_gives_up;

// Call this each time that the counter is still too small. A workgroup gives up after kChainMostSpins calls. Returns
// whether this workgroup or another one has given up.
bool chain_in_vain(inout uint spins) {
  spins++;
  if (spins >= kChainMostSpins) {
    atomicStore(ChainRef(push.chain_failed).word, 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
  }
  return (spins & 255u) == 0u && atomicLoad(ChainRef(push.chain_failed).word, gl_ScopeDevice, gl_StorageSemanticsNone,
                                            gl_SemanticsRelaxed) != 0u;
}

bool chain_wait() {
  if (push.chain_expected == 0u) return true;
  if (gl_LocalInvocationIndex == 0u) {
    uint spins = 0u;
    bool give_up = false;
    while (!give_up && atomicLoad(CHAIN_COUNT(push.chain_link - 1u).word, gl_ScopeDevice, gl_StorageSemanticsNone,
                                  gl_SemanticsRelaxed) < push.chain_expected) {
      give_up = chain_in_vain(spins);
    }
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
    chain_gives_up = give_up ? 1u : 0u;
  }
  controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                 gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
  return chain_gives_up == 0u;
}

void chain_arrive() {
  controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                 gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
  if (gl_LocalInvocationIndex == 0u) {
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease | gl_SemanticsMakeAvailable);
    atomicAdd(CHAIN_COUNT(push.chain_link).word, 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
  }
}
#else
bool chain_wait() { return true; }
void chain_arrive() {}
#endif
