// Finds the columns of a sequence in a step, and the slots that hold its layers' states (DeltaRun in delta.hpp). A
// kernel that includes this file has push constants `parameters`, `runs`, `states` and `slot_floats`.

// A sequence's columns in the step.
struct Run {
  uint first, columns;     // columns of the step
  uint from, to;           // slots: read before the first column, and written after the last
  uint saved_after;        // after this many columns the state is also written to `saved`; 0: never
  uint saved;
  bool fresh;              // the sequence begins at position 0, so everything before it is zero
};

// The parameters' third count says how many runs there are.
uint run_count() { return Words(push.parameters).v[2]; }

Run run_at(uint index) {
  uvec4 a = Quads(push.runs).v[index * 2u], b = Quads(push.runs).v[index * 2u + 1u];
  Run run;
  run.first = a.x;
  run.columns = a.y;
  run.from = a.z;
  run.to = a.w;
  run.saved_after = b.x;
  run.saved = b.y;
  run.fresh = ColumnsRef(push.parameters + 64u).v[a.x].y == 0u;
  return run;
}

uint64_t slot_at(uint slot) { return push.states + uint64_t(slot) * push.slot_floats * 4u; }
