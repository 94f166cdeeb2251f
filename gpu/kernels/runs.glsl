// Finds the columns of a sequence in a step, and the slots that hold its layers' states (DeltaRun in delta.hpp). A
// kernel that includes this file has push constants `parameters`, `runs`, `column_runs`, `states` and `slot_floats`.

// A sequence's columns in the step.
struct Run {
  uint first, columns;     // columns of the step
  uint from, to;           // slots: read before the first column, and written after the last that is no draft
  uint saved_after;        // after this many columns the state is also written to `saved`; 0: never
  uint saved;
  uint sure;               // how many of the columns are no drafts: the first ones
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
  run.sure = run.columns - b.z;
  run.fresh = ColumnsRef(push.parameters + 64u).v[a.x].y == 0u;
  return run;
}

Run run_of(uint column) { return run_at(Words(push.column_runs).v[column * 2u]); }

// Returns the slot that gets the states after this many of the run's columns. From `sure` columns on there is one.
uint slot_after(Run run, uint columns) {
  return columns == run.sure ? run.to : Words(push.column_runs).v[(run.first + columns - 1u) * 2u + 1u];
}

uint64_t slot_at(uint slot) { return push.states + uint64_t(slot) * push.slot_floats * 4u; }
