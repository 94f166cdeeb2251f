// Emulates matrix units as units.glsl uses them: invocations exchange their fragments through shared memory. Tests
// use it to compute the units' products on devices that have none. A subgroup is 32 invocations, whatever the device's
// subgroups are, and all of them take part in a product or a vote at the same time.
//
// Only lavapipe can emulate several subgroups of a workgroup, which may be in different branches and rounds of loops:
// it runs each invocation up to its next barrier(), whichever one that is, then the next invocation, and all of them
// again from there. So barrier() orders the invocations of a subgroup, which take the same branches, and a kernel's own
// barriers are whole_barrier(). Once an invocation has ended, lavapipe runs the others only once more, so all of a
// workgroup's invocations wait for each other before they end.
#define WeightFragment float16_t[8]
#define InputFragment float16_t[4]
#define SumFragment float[4]
#define unit_lane (gl_LocalInvocationIndex & 31u)
#define unit_subgroup (gl_LocalInvocationIndex >> 5)

const uint kMostEmulated = 16;  // subgroups of a workgroup
// Halves in pairs: [subgroup][row][pair of k] and [subgroup][column][pair of k].
shared uint emulated_weights[kMostEmulated * 16 * 8], emulated_inputs[kMostEmulated * 8 * 8];
shared uint emulated_words[kMostEmulated * 32];
shared uint emulated_subgroups, emulated_arrivals;
uint barriers_passed = 0u;

void whole_barrier() {
  barriers_passed++;
  if (unit_lane == 0u) atomicAdd(emulated_arrivals, 1u);
  bool all = false;
  [[dont_unroll]] while (!all) {
    barrier();
    all = emulated_arrivals >= barriers_passed * emulated_subgroups;
  }
}

void kernel_main();
void main() {
  if (gl_LocalInvocationIndex == 0u) emulated_subgroups = emulated_arrivals = 0u;
  barrier();
  if (unit_lane == 0u) atomicAdd(emulated_subgroups, 1u);
  barrier();
  kernel_main();
  whole_barrier();
}

SumFragment no_sums() { return float[4](0.0, 0.0, 0.0, 0.0); }

SumFragment multiply_add(WeightFragment a, InputFragment b, SumFragment c) {
  uint row = unit_lane >> 2, pair = unit_lane & 3u;
  uint weights_at = (unit_subgroup * 16u + row) * 8u, inputs_at = unit_subgroup * 64u;
  barrier();
  [[unroll]] for (uint e = 0; e < 4; e++) {
    emulated_weights[weights_at + (e & 2u) * 32u + pair + (e & 1u) * 4u] =
        packFloat2x16(f16vec2(a[(e & 1u) * 2u + (e & 2u) * 2u], a[(e & 1u) * 2u + (e & 2u) * 2u + 1u]));
  }
  [[unroll]] for (uint e = 0; e < 2; e++) {
    emulated_inputs[inputs_at + row * 8u + pair + e * 4u] = packFloat2x16(f16vec2(b[e * 2u], b[e * 2u + 1u]));
  }
  barrier();
  SumFragment sums = c;
  [[dont_unroll]] for (uint k = 0; k < 8; k++) {
    [[unroll]] for (uint e = 0; e < 4; e++) {
      vec2 weights = vec2(unpackFloat2x16(emulated_weights[weights_at + (e & 2u) * 32u + k]));
      vec2 inputs = vec2(unpackFloat2x16(emulated_inputs[inputs_at + (pair * 2u + (e & 1u)) * 8u + k]));
      precise float first = fma(weights.x, inputs.x, sums[e]);
      precise float second = fma(weights.y, inputs.y, first);
      sums[e] = second;
    }
  }
  return sums;
}

uint from_lane(uint word, uint lane) {
  barrier();
  emulated_words[gl_LocalInvocationIndex] = word;
  barrier();
  return emulated_words[unit_subgroup * 32u + lane];
}

bool any_lane(bool value) {
  barrier();
  emulated_words[gl_LocalInvocationIndex] = value ? 1u : 0u;
  barrier();
  uint some = 0u;
  [[dont_unroll]] for (uint lane = 0; lane < 32u; lane++) some |= emulated_words[unit_subgroup * 32u + lane];
  return some != 0u;
}
bool all_lanes(bool value) { return !any_lane(!value); }

#define barrier whole_barrier
#define main kernel_main
