// Emulates matrix units as units.glsl uses them: invocations exchange their fragments through shared memory. Tests
// use it to compute the units' products on devices that have none. A workgroup is one subgroup of 32 invocations,
// whatever the device's subgroups are, and all of them take part in a product at the same time.
#define WeightFragment float16_t[8]
#define InputFragment float16_t[4]
#define SumFragment float[4]
#define unit_lane gl_LocalInvocationIndex
#define unit_subgroup 0u

shared float emulated_weights[16 * 16], emulated_inputs[16 * 8];
shared uint emulated_words[32];

SumFragment no_sums() { return float[4](0.0, 0.0, 0.0, 0.0); }

SumFragment multiply_add(WeightFragment a, InputFragment b, SumFragment c) {
  uint row = unit_lane >> 2, pair = (unit_lane & 3u) * 2u;
  barrier();
  [[unroll]] for (uint e = 0; e < 8; e++) {
    emulated_weights[(row + (e & 4u) * 2u) * 16u + pair + (e & 1u) + (e & 2u) * 4u] = float(a[e]);
  }
  [[unroll]] for (uint e = 0; e < 4; e++) emulated_inputs[(pair + (e & 1u) + (e & 2u) * 4u) * 8u + row] = float(b[e]);
  barrier();
  SumFragment sums = c;
  [[unroll]] for (uint e = 0; e < 4; e++) {
    [[dont_unroll]] for (uint k = 0; k < 16; k++) {
      precise float sum = fma(emulated_weights[(row + (e & 2u) * 4u) * 16u + k],
                              emulated_inputs[k * 8u + pair + (e & 1u)], sums[e]);
      sums[e] = sum;
    }
  }
  return sums;
}

uint from_lane(uint word, uint lane) {
  barrier();
  emulated_words[unit_lane] = word;
  barrier();
  return emulated_words[lane];
}
