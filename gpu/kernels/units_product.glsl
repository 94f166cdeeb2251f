// A tile of a product by matrix units; units.glsl says in which order it adds.
//
// There are two ways of dividing the work, and both give the same bits. For up to 256 columns, each subgroup computes
// one segment of a block of rows, and neighbouring subgroups add their segments through shared memory. So even a small
// matrix has all of its loads in flight. If the tiles are too large for shared memory, the subgroups add one piece of
// the tile after another (kPieceTiles). For many columns, a subgroup computes all segments one after another, and keeps
// the total beside the segment's sums, or in memory (kLocalTotals).
//
// Loops over steps are not unrolled: otherwise the compiler moves loads forward until registers spill, and the kernel
// becomes much slower.
//
// The includer has push (matvec_push.glsl), epilogue.glsl, the constants kColumns, kRows (blocks of a subgroup),
// kColumnTiles, kSubgroups, kStepGroups, kAhead, kLocalTotals, and SEGMENTS and SEGMENT_STAGES; for split_product() the
// shared array `partials` of kSubgroups * kPieceTiles * 128 floats.
const uint kTiles = kRows * kColumnTiles;

uint lane;
uint64_t blocks[kRows];
#ifdef BULKHEAD_EXPERTS
uint64_t x_tiles[kColumnTiles];
#define X_TILE(n, group) (x_tiles[n] + (group) * 512u)
#else
uint64_t x_base;
#define X_TILE(n, group) (x_base + (group) * 512u + n * (uint64_t(push.x_stride) * 16u))
#endif
SumFragment sums[kTiles];

// The weights of a step: a part of a stage, or some stages, all loaded before the first is used.
//
// A loop that loads in one round what it uses in the next one is slow: the compilers that we know copy the registers
// at the end of a round, and each copy waits for its load. So a round uses what it loads itself, and other subgroups
// compute while it waits. Only the first step's weights are loaded before the loop. (kAhead == 1 nevertheless loads one
// step ahead, because for weights that are bytes or halves that is not slower.)
const uint kStepStages = kStepGroups > 4u ? kStepGroups / 4u : 1u, kPartGroups = kStepGroups > 4u ? 4u : kStepGroups;
const uint kStepParts = kRows * kStepStages;
// Where in `parts` the weights of the step that was loaded early lie, and those of the present round.
const uint kEarly = 0, kNow = kStepParts;
LaneWeights parts[2 * kStepParts];

void load_step(const uint place, uint group, uint last) {
  [[unroll]] for (uint s = 0; s < kStepStages; s++) {
    if (s == 0u || group + s * 4u < last) {
      [[unroll]] for (uint r = 0; r < kRows; r++) {
        parts[place + s * kRows + r] = load_weights(kPartGroups, blocks[r], group + s * 4u, lane);
      }
    }
  }
}

void multiply_part(LaneWeights now[kRows], uint group) {
  [[unroll]] for (uint r = 0; r < kRows; r++) prepare(now[r]);
  [[unroll]] for (uint g = 0; g < kPartGroups; g++) {
    uvec4 x[kColumnTiles];
    [[unroll]] for (uint n = 0; n < kColumnTiles; n++) x[n] = Quads(X_TILE(n, group)).v[g * 32u];
    [[unroll]] for (uint r = 0; r < kRows; r++) {
      f16vec2 even_row[4], odd_row[4];
      unpack_group(now[r], g, lane, even_row, odd_row);
      [[unroll]] for (uint j = 0; j < 2; j++) {
        WeightFragment a = weight_fragment(even_row, odd_row, j);
        [[unroll]] for (uint n = 0; n < kColumnTiles; n++) {
          sums[r * kColumnTiles + n] = multiply_add(a, input_fragment(x[n], j), sums[r * kColumnTiles + n]);
        }
      }
    }
  }
}

void multiply_step(const uint place, uint group, uint last) {
  [[unroll]] for (uint s = 0; s < kStepStages; s++) {
    if (s == 0u || group + s * 4u < last) {
      LaneWeights now[kRows];
      [[unroll]] for (uint r = 0; r < kRows; r++) now[r] = parts[place + s * kRows + r];
      multiply_part(now, group + s * 4u);
    }
  }
}

// Sets the sums to those of groups [first, last). With kAhead, load_step(kEarly, first, last) must come before.
void multiply(uint first, uint last) {
  [[unroll]] for (uint t = 0; t < kTiles; t++) sums[t] = no_sums();
  if (kAhead == 1u) {
    // Always one step ahead.
    [[dont_unroll]] for (uint group = first; group < last; group += kStepGroups) {
      [[unroll]] for (uint i = 0; i < kStepParts; i++) parts[kNow + i] = parts[kEarly + i];
      if (group + kStepGroups < last) load_step(kEarly, group + kStepGroups, last);
      multiply_step(kNow, group, last);
    }
    return;
  }
  if (kAhead != 0u) multiply_step(kEarly, first, last);
  [[dont_unroll]] for (uint group = first + (kAhead != 0u ? kStepGroups : 0u); group < last; group += kStepGroups) {
    load_step(kNow, group, last);
    multiply_step(kNow, group, last);
  }
}

uint results_of_block() { return EPILOGUE == kGated ? 8u : 16u; }

// Where the weights of blocks block0 ... and the input of column tiles tile0 ... begin.
void take_place(uint block0, uint tile0) {
  lane = unit_lane;
  hide_constants(push.quants);
  uint block_count = (push.rows + results_of_block() - 1u) / results_of_block();
  uint64_t block_bytes = unit_block_bytes(push.groups);
#ifdef BULKHEAD_EXPERTS
  uint64_t first_block = push.quants + uint64_t(tile_expert) * block_count * block_bytes;
  [[unroll]] for (uint n = 0; n < kColumnTiles; n++) {
    uint column = INPUT_COLUMN(pair_at((tile0 + n) * 8u + (lane >> 2)));
    x_tiles[n] = push.x + uint64_t(column >> 3) * push.x_stride * 16u + ((column & 7u) * 4u + (lane & 3u)) * 16u;
  }
#else
  uint64_t first_block = push.quants;
  // If there are fewer columns than a tile has, lanes read the last column again.
  uint own_column = min(lane >> 2, kColumns - 1u);
  x_base = push.x + uint64_t(tile0) * push.x_stride * 16u + (own_column * 4u + (lane & 3u)) * 16u;
#endif
  [[unroll]] for (uint r = 0; r < kRows; r++) blocks[r] = first_block + min(block0 + r, block_count - 1u) * block_bytes;
}

// A lane's results of a tile are two neighbouring rows (kGated: a gate and its up), in columns 2 * q and 2 * q + 1.
uint result_row(uint block) { return EPILOGUE == kGated ? block * 8u + (lane >> 2) : block * 16u + (lane >> 2) * 2u; }
uint result_column(uint tile, uint e) { return tile * 8u + (lane & 3u) * 2u + e; }

// Returns where that column's result goes.
#ifdef BULKHEAD_EXPERTS
#define RESULT_COLUMN(column) pair_at(column)
#else
#define RESULT_COLUMN(column) (column)
#endif

struct PairOperands {
  Operands first, second;
};
PairOperands pair_operands(uint column, uint block, uint count, FusedRef fused) {
  PairOperands pair;
  pair.first = operands_of(column, result_row(block), count, fused);
  pair.second = pair.first;
  if (EPILOGUE == kStore || EPILOGUE == kAdd) {
    pair.second = operands_of(column, result_row(block) + 1u, count, fused);
  }
  return pair;
}

void finish_pair(uint column, uint block, float first, float second, float scale, PairOperands operands,
                 FusedRef fused) {
  uint row = result_row(block);
  if (EPILOGUE == kStore || EPILOGUE == kAdd) {
    finish_result(column, row, first, 0.0, scale, operands.first, fused);
    finish_result(column, row + 1u, second, 0.0, scale, operands.second, fused);
  } else {
    finish_result(column, row, first, second, scale, operands.first, fused);
  }
}

// The subgroup computes all segments itself. The input must be normalised, or its scales must be in memory.
//
// With kLocalTotals the totals are in the invocation's memory: each segment needs them only once, and in registers
// they would leave room for only half of the subgroups on a processor.
void serial_product(uint block0, uint tile0, uint count) {
  take_place(block0, tile0);
  precise float totals[kTiles * 4];
  // Zero, because no address is that high. The compiler can't know that, so the array stays in memory.
  uint place = kLocalTotals != 0u ? uint(push.quants >> 63) : 0u;
  [[dont_unroll]] for (uint s = 0; s < SEGMENTS; s++) {
    uint last = min((s + 1u) * SEGMENT_STAGES * 4u, push.groups);
    if (kAhead != 0u) load_step(kEarly, s * SEGMENT_STAGES * 4u, last);
    multiply(s * SEGMENT_STAGES * 4u, last);
    [[unroll]] for (uint i = 0; i < kTiles * 4u; i++) {
      float sum = sums[i / 4u][i % 4u];
      totals[place + i] = s == 0u ? sum : totals[place + i] + sum;
    }
  }
  FusedRef fused = FusedRef(push.fused);
  uint block_count = (push.written_rows + results_of_block() - 1u) / results_of_block();
  [[unroll]] for (uint i = 0; i < kTiles * 2u; i++) {
    uint t = i / 2u, e = i & 1u;
    uint block = block0 + t / kColumnTiles, column = result_column(tile0 + t % kColumnTiles, e);
    if (column < count && block < block_count) {
      finish_pair(RESULT_COLUMN(column), block, totals[place + t * 4u + e], totals[place + t * 4u + e + 2u], 1.0,
                  pair_operands(RESULT_COLUMN(column), block, count, fused), fused);
    }
  }
}
