// A tile of a product by matrix units; units.glsl says in which order.
//
// Two ways to share the work, of equal bits. For few columns the segments of a block of rows go to neighbouring subgroups,
// which add through shared memory: even a small matrix then has all its loads in flight. For many columns a subgroup makes
// all segments one after another, and keeps the total beside the segment's sums.
//
// Loops over steps stay rolled: unrolled, the compiler hoists loads until registers spill, and the kernel falls off a cliff.
//
// The includer has push (matvec_push.glsl), epilogue.glsl, the constants kColumns, kRows (blocks of a subgroup),
// kColumnTiles, kSubgroups, kStepGroups, kAhead, and UNIT_TYPE, SEGMENTS and SEGMENT_STAGES; for split_product() the shared
// array `partials` of kSubgroups * kRows * kColumnTiles * 128 floats.
const uint kTiles = kRows * kColumnTiles;

uint lane;
uint64_t blocks[kRows];
uint64_t x_base;
fcoopmatNV<32, gl_ScopeSubgroup, 16, 8> sums[kTiles];

// The weights of the next step, where they are asked for ahead of it.
LaneWeights next[kRows];
void load_next(uint group) {
  [[unroll]] for (uint r = 0; r < kRows; r++) next[r] = load_weights(UNIT_TYPE, kStepGroups, blocks[r], group, lane);
}

// Sets the sums to those of groups [first, last). With kAhead load_next(first) came before.
void multiply(uint first, uint last) {
  [[unroll]] for (uint t = 0; t < kTiles; t++) sums[t] = fcoopmatNV<32, gl_ScopeSubgroup, 16, 8>(0.0);
  uint64_t tile_bytes = uint64_t(push.x_stride) * 16u;
  [[dont_unroll]] for (uint group = first; group < last; group += kStepGroups) {
    LaneWeights now[kRows];
    if (kAhead != 0u) {
      [[unroll]] for (uint r = 0; r < kRows; r++) now[r] = next[r];
      if (kAhead == 1u && group + kStepGroups < last) load_next(group + kStepGroups);
    } else {
      [[unroll]] for (uint r = 0; r < kRows; r++) now[r] = load_weights(UNIT_TYPE, kStepGroups, blocks[r], group, lane);
    }
    [[unroll]] for (uint r = 0; r < kRows; r++) prepare(UNIT_TYPE, now[r]);
    uint64_t x_at = x_base + group * 512u;
    [[unroll]] for (uint g = 0; g < kStepGroups; g++) {
      uvec4 x[kColumnTiles];
      [[unroll]] for (uint n = 0; n < kColumnTiles; n++) x[n] = Quads(x_at + n * tile_bytes).v[g * 32u];
      [[unroll]] for (uint r = 0; r < kRows; r++) {
        f16vec2 even_row[4], odd_row[4];
        unpack_group(UNIT_TYPE, now[r], g, lane, even_row, odd_row);
        [[unroll]] for (uint j = 0; j < 2; j++) {
          fcoopmatNV<16, gl_ScopeSubgroup, 16, 16> a;
          a[0] = even_row[j * 2u].x;
          a[1] = even_row[j * 2u].y;
          a[2] = even_row[j * 2u + 1u].x;
          a[3] = even_row[j * 2u + 1u].y;
          a[4] = odd_row[j * 2u].x;
          a[5] = odd_row[j * 2u].y;
          a[6] = odd_row[j * 2u + 1u].x;
          a[7] = odd_row[j * 2u + 1u].y;
          [[unroll]] for (uint n = 0; n < kColumnTiles; n++) {
            fcoopmatNV<16, gl_ScopeSubgroup, 16, 8> b;
            f16vec2 b0 = unpackFloat2x16(x[n][j * 2u]), b1 = unpackFloat2x16(x[n][j * 2u + 1u]);
            b[0] = b0.x;
            b[1] = b0.y;
            b[2] = b1.x;
            b[3] = b1.y;
            sums[r * kColumnTiles + n] = coopMatMulAddNV(a, b, sums[r * kColumnTiles + n]);
          }
        }
      }
    }
    if (kAhead == 2u && group + kStepGroups < last) load_next(group + kStepGroups);
  }
}

uint results_of_block() { return EPILOGUE == kGated ? 8u : 16u; }

// Where the weights of blocks block0 ... and the input of column tiles tile0 ... begin.
void take_place(uint block0, uint tile0) {
  lane = gl_SubgroupInvocationID;
  uint last_block = (push.rows + results_of_block() - 1u) / results_of_block() - 1u;
  uint64_t block_bytes = unit_block_bytes(UNIT_TYPE, push.groups);
  [[unroll]] for (uint r = 0; r < kRows; r++) blocks[r] = push.quants + min(block0 + r, last_block) * block_bytes;
  // Where there are fewer columns than a tile has, lanes read the last one again.
  uint own_column = min(lane >> 2, kColumns - 1u);
  x_base = push.x + uint64_t(tile0) * push.x_stride * 16u + (own_column * 4u + (lane & 3u)) * 16u;
}

// A lane's results of a tile are two rows that are neighbours (kGated: a gate and its up), of columns 2 * q and 2 * q + 1.
uint result_row(uint block) { return EPILOGUE == kGated ? block * 8u + (lane >> 2) : block * 16u + (lane >> 2) * 2u; }
uint result_column(uint tile, uint e) { return tile * 8u + (lane & 3u) * 2u + e; }

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

void finish_pair(uint column, uint block, float first, float second, float scale, PairOperands operands, FusedRef fused) {
  uint row = result_row(block);
  if (EPILOGUE == kStore || EPILOGUE == kAdd) {
    finish_result(column, row, first, 0.0, scale, operands.first, fused);
    finish_result(column, row + 1u, second, 0.0, scale, operands.second, fused);
  } else {
    finish_result(column, row, first, second, scale, operands.first, fused);
  }
}

// All segments by the subgroup itself. The input is normed, or its scales are in memory.
void serial_product(uint block0, uint tile0, uint count) {
  take_place(block0, tile0);
  precise float totals[kTiles * 4];
  [[dont_unroll]] for (uint s = 0; s < SEGMENTS; s++) {
    if (kAhead != 0u) load_next(s * SEGMENT_STAGES * 4u);
    multiply(s * SEGMENT_STAGES * 4u, min((s + 1u) * SEGMENT_STAGES * 4u, push.groups));
    [[unroll]] for (uint i = 0; i < kTiles * 4u; i++) {
      float sum = sums[i / 4u][i % 4u];
      totals[i] = s == 0u ? sum : totals[i] + sum;
    }
  }
  FusedRef fused = FusedRef(push.fused);
  uint block_count = (push.written_rows + results_of_block() - 1u) / results_of_block();
  [[unroll]] for (uint i = 0; i < kTiles * 2u; i++) {
    uint t = i / 2u, e = i & 1u;
    uint block = block0 + t / kColumnTiles, column = result_column(tile0 + t % kColumnTiles, e);
    if (column < count && block < block_count) {
      finish_pair(column, block, totals[t * 4u + e], totals[t * 4u + e + 2u], 1.0,
                  pair_operands(column, block, count, fused), fused);
    }
  }
}
