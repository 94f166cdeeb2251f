// Kernels of a step that are dispatched without barriers between them: a kernel's workgroups start as soon as those of the
// one before leave room, ask for their weights, and only then wait for the results that they work on.
//
// Each kernel is a link. Its workgroups count themselves in device memory when they are through, also those that had
// nothing to do; the next link's wait until all have. So whoever is past its wait sees everything that any link before
// wrote. A device that starts a dispatch's workgroups before the one before has started all of its own could wait in vain:
// waits are bounded, who has waited too long says so in `failed`, and the host redoes the step with barriers.
//
// Without BULKHEAD_CHAINED all of this is nothing. A kernel includes chain_push.glsl before everything else, does its work
// in a function of its own, asks chain_wait() before it reads what other kernels make (false: don't work), and ends with
// chain_arrive().
#ifdef BULKHEAD_CHAINED
layout(buffer_reference, std430, buffer_reference_align = 4) nonprivate buffer ChainRef { uint word; };
const uint kChainMostSpins = 1000000;
// A count has a line of its own.
#define CHAIN_COUNT(link) ChainRef(push.chain_counts + (link) * 128u)

shared uint chain_gives_up;

// Counts a look in vain. True: enough of them, here or elsewhere.
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
