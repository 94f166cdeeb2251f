// Sums over a workgroup. The kernel declares kInvocations, a power of two.
shared float sums[kInvocations];

// Returns the sum over all invocations.
float total(float own) {
  uint id = gl_LocalInvocationID.x;
  sums[id] = own;
  barrier();
  [[unroll]] for (uint distance = kInvocations / 2u; distance > 0u; distance /= 2u) {
    if (id < distance) {
      precise float sum = sums[id] + sums[id + distance];
      sums[id] = sum;
    }
    barrier();
  }
  float made = sums[0];
  barrier();
  return made;
}
