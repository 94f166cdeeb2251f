// Several workgroups compute the attention of a column. The splits of a group of heads are distributed over all
// subgroups of the group's workgroups. Each subgroup writes its splits' results to memory, and the workgroup that
// finishes last combines them all, in rising order.
//
// The includer has `push` with partials, counts and most_splits, attention_sizes.glsl, attention_results.glsl, and
// `room` of kRoomOfShares.

// Each counter has its own cache line.
const uint kDoneWords = 32;

shared uint is_last;
// The largest score of each head, for its sink.
shared float largest_scores[kSinks != 0u ? kShare : 1u];

// Returns whether the workgroup is the last of `members` to write its results; it then sees the others' results. All
// invocations must call this.
bool last_of(uint which, uint members) {
  if (members == 1u) {
    memoryBarrierBuffer();
    barrier();
    return true;
  }
#ifdef BULKHEAD_CHAINED
  controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                 gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
  if (gl_LocalInvocationIndex == 0u) {
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease | gl_SemanticsMakeAvailable);
    uint before = atomicAdd(DoneRef(push.counts).v[which * kDoneWords], 1u, gl_ScopeDevice, gl_StorageSemanticsNone,
                            gl_SemanticsRelaxed);
    bool last = before + 1u == members;
    // The next layer must find the counter at 0.
    if (last)
      atomicStore(DoneRef(push.counts).v[which * kDoneWords], 0u, gl_ScopeDevice, gl_StorageSemanticsNone,
                  gl_SemanticsRelaxed);
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
    is_last = last ? 1u : 0u;
  }
  controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                 gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
#else
  memoryBarrierBuffer();
  barrier();
  if (gl_LocalInvocationIndex == 0u) {
    uint before = atomicAdd(DoneRef(push.counts).v[which * kDoneWords], 1u);
    bool last = before + 1u == members;
    if (last) DoneRef(push.counts).v[which * kDoneWords] = 0u;
    is_last = last ? 1u : 0u;
  }
  barrier();
  memoryBarrierBuffer();
#endif
  return is_last != 0u;
}

void fold_partials(uint64_t base, uint column, uint head0, uint heads, uint splits) {
  uint index = gl_LocalInvocationIndex;
  for (uint i = index; i < heads * splits; i += kInvocations) {
    uint h = i / splits, split = i % splits;
    vec4 ends = PartialRef(partial_at(base, h, split)).v[kHeadQuads];
    room[h * kMaximumSplits + split] = ends.x;
    room[kShares + h * kMaximumSplits + split] = ends.y;
  }
  barrier();
  float old_shares[kOwnShares], new_shares[kOwnShares];
  [[unroll]] for (uint i = 0; i < kOwnShares; i++) {
    uint at = i * kInvocations + index;
    uint h = at / kMaximumSplits, split = at % kMaximumSplits;
    old_shares[i] = new_shares[i] = 0.0;
    if (h < heads && split < splits) {
      float before = -1e30;
      for (uint s = 0; s < split; s++) before = max(before, room[h * kMaximumSplits + s]);
      float own = room[at];
      float maximum = max(before, own);
      precise float old_share = exp2(before - maximum);
      precise float new_share = exp2(own - maximum);
      old_shares[i] = old_share;
      new_shares[i] = new_share;
      if (kSinks != 0u && split + 1u == splits) largest_scores[h] = maximum;
    }
  }
  barrier();
  [[unroll]] for (uint i = 0; i < kOwnShares; i++) {
    uint at = i * kInvocations + index;
    if (at / kMaximumSplits < heads && at % kMaximumSplits < splits) {
      precise float scaled = room[kShares + at] * new_shares[i];
      room[at] = old_shares[i];
      room[kShares + at] = scaled;
      room[2u * kShares + at] = new_shares[i];
    }
  }
  barrier();
  for (uint item = index; item < heads * kHeadQuads; item += kInvocations) {
    uint h = item / kHeadQuads, quad = item % kHeadQuads;
    precise float all_sum = 0.0;
    precise vec4 all_results = vec4(0.0);
    for (uint first = 0; first < splits; first += kSplitsAtOnce) {
      vec4 parts[kSplitsAtOnce];
      [[unroll]] for (uint s = 0; s < kSplitsAtOnce; s++) {
        parts[s] = PartialRef(partial_at(base, h, min(first + s, splits - 1u))).v[quad];
      }
      [[unroll]] for (uint s = 0; s < kSplitsAtOnce; s++) {
        if (first + s < splits) {
          uint at = h * kMaximumSplits + first + s;
          float old_share = room[at], new_share = room[2u * kShares + at];
          precise float sum = fma(all_sum, old_share, room[kShares + at]);
          all_sum = sum;
          [[unroll]] for (uint e = 0; e < 4; e++) {
            precise float mine = parts[s][e] * new_share;
            precise float folded = fma(all_results[e], old_share, mine);
            all_results[e] = folded;
          }
        }
      }
    }
    float weights = with_sink(push.sinks, head0 + h, largest_scores[kSinks != 0u ? h : 0u], all_sum);
    [[unroll]] for (uint e = 0; e < 4; e++) {
      uint entry = quad * 4u + e;
      precise float value = all_results[e] / weights;
      store_head(column, head0 + h, entry, value);
    }
  }
  pad_heads(column, head0, heads, index, kInvocations);
}

// Computes the share of the group's workgroup number `member`; workgroups beyond the number of splits have nothing to
// do. All invocations must call this. `columns` neighbours, from `column` on, are computed together; their splits
// have the same size. `all` has the positions that any of them sees.
void attend_spread(uint column, uint columns, uint group, uint member, uint members, Splits all, uint page_table) {
  uint splits = split_count(all);
  uint head0 = first_head(group);
  uint64_t base = push.partials + (uint64_t(column) * kHeads + head0) * (push.most_splits * kPartialFloats * 4u);
  take_share(column, columns, group);
  for (uint split = unit_subgroup * members + member; split < splits; split += members * kSubgroups) {
    attend_share(column, group, split_begin(all, split), split_end(all, split), page_table);
    leave_partial(base, columns, heads_of(group), split);
  }
  if (!last_of(column * kHeads + group, min(members, splits))) return;
  for (uint c = 0; c < columns; c++) {
    if (c != 0u) barrier();
    // With a window, a column may see nothing of the first split, which then changes nothing.
    uint own_splits = split_count(Splits(all.begin, all.end - (columns - 1u - c), all.size));
    fold_partials(base + c * column_partials(), column + c, head0, heads_of(group), own_splits);
  }
}
