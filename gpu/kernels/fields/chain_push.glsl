// These fields follow the push constants of a kernel that is a link of a chain (chain.glsl). Other kernels do
// not have them.
#if defined(__cplusplus) || defined(BULKHEAD_CHAINED)
uint64_t chain_counts;  // in device memory, kChainCountBytes for each link; zeros before the first link
uint64_t chain_failed;  // a word: 0 until a workgroup has waited too long
uint chain_link;        // which link this is
uint chain_expected;    // workgroups of the link before; 0: there is none
#endif
