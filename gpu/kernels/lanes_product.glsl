// A block of rows times a tile of columns on a GPU, where a subgroup computes rows together.
//
// A lane takes a group of 32 weights, with sixteen-byte loads that are adjacent across the lanes, for kRows rows at
// once, so that every x loaded serves several rows. SPLIT subgroups may share a row's groups.
//
// The order of a column's additions: within a lane its groups in rising order, quarters in order, one fma each; then
// over the lanes by halving distances; then over the SPLIT subgroups in order. SPLIT depends only on the matrix's
// shape; kColumns, kRows and kSubgroups do not affect the order.
//
// Much of a product's few microseconds is waiting for memory. So a block's first weights are loaded before anything
// else (product_begin), then the operands for finishing its results, and the next group's weights before this group's
// sums are needed.
//
// The includer has kColumns, kRows, kMatrixRows, kLanes, kSubgroups, kInvocations, and the shared arrays `partials` and
// `norm_parts`.
const uint kSums = kMatrixRows * kColumns;
const uint kResultsOfThread = (kRows * kColumns + kLanes - 1u) / kLanes;

Matrix matrix_rows[kMatrixRows];
const uint kRowQuads = kPlanes == 0u ? 1u : kPlanes;
uvec4 quads[kMatrixRows * kRowQuads];
vec4 group_scales[kMatrixRows];
uvec3 group_highs[kMatrixRows];
float sums[kSums];

void load_group(uint group) {
  [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
    [[unroll]] for (uint p = 0; p < kPlanes; p++) {
      quads[r * kRowQuads + p] = Quads(matrix_rows[r].quants).v[p * push.groups + group];
    }
    group_highs[r] = group_high(matrix_rows[r], group);
    group_scales[r] = group_scale(matrix_rows[r], group);
  }
}

// Returns where the tile's columns of the input begin.
#ifdef BULKHEAD_EXPERTS
uint64_t x_columns[kColumns];
#define X_COLUMN(c) x_columns[c]
#else
uint64_t x_base;
#define X_COLUMN(c) (x_base + c * (uint64_t(push.x_stride) * 4u))
#endif

void take_columns(uint column0) {
#ifdef BULKHEAD_EXPERTS
  [[unroll]] for (uint c = 0; c < kColumns; c++) {
    x_columns[c] = push.x + uint64_t(INPUT_COLUMN(pair_at(c))) * push.x_stride * 4u;
  }
#else
  x_base = push.x + uint64_t(column0) * push.x_stride * 4u;
#endif
}

void add_group(uint group) {
  // In vec4: block of 32 groups, quarter, group within the block.
  uint64_t x_lane = uint64_t((group >> 5) * 256u + (group & 31u)) * 16u;
  [[unroll]] for (uint j = 0; j < 8; j++) {
    vec4 weights[kMatrixRows];
    [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
      uvec4 quad = quads[r * kRowQuads + (j * kPlanes) / 8u];
      weights[r] = decode(words_of(quad, j), group_highs[r], j & 3u, j >= 4u, group_scales[r]);
    }
    [[unroll]] for (uint c = 0; c < kColumns; c++) {
      vec4 x = Vec4s(X_COLUMN(c) + x_lane).v[j * 32u];
      [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
        precise float sum = sums[r * kColumns + c];
        [[unroll]] for (uint i = 0; i < 4; i++) sum = fma(weights[r][i], x[i], sum);
        sums[r * kColumns + c] = sum;
      }
    }
  }
}

void product_begin(uint block) {
  uint part = gl_SubgroupID % SPLIT;
  uint row0 = (block * (kSubgroups / SPLIT) + gl_SubgroupID / SPLIT) * kRows;
  Matrix matrix = Matrix(push.quants, push.high, push.scales, push.supers);
  [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
    uint row = min(row0 + (r % kRows), push.rows - 1u);
#ifdef BULKHEAD_EXPERTS
    row += tile_expert * (EPILOGUE == kGated ? 2u * push.rows : push.rows);
#endif
    matrix_rows[r] = row_of(matrix, r >= kRows ? push.rows + row : row, push.groups);
  }
  uint group = part * kLanes + gl_SubgroupInvocationID;
  if (group < push.groups) load_group(group);
}

// Sums the squares of the residual stream's columns, for column_scale() after a barrier.
void sum_squares(uint column0, FusedRef fused) {
  for (uint part = gl_SubgroupID; part < kNormParts; part += kSubgroups) {
    precise float squares[kColumns];
    [[unroll]] for (uint c = 0; c < kColumns; c++) squares[c] = 0.0;
    uint width = fused.stream_width;
    for (uint quad = part * kLanes + gl_SubgroupInvocationID; quad * 4u < width; quad += kNormParts * kLanes) {
      [[unroll]] for (uint c = 0; c < kColumns; c++) {
        vec4 v = Vec4s(fused.stream + uint64_t(column0 + c) * fused.stream_stride * 4u).v[quad];
        [[unroll]] for (uint i = 0; i < 4; i++) {
          float entry = quad * 4u + i < width ? v[i] : 0.0;
          squares[c] = fma(entry, entry, squares[c]);
        }
      }
    }
    [[unroll]] for (uint c = 0; c < kColumns; c++) {
      precise float sum = squares[c];
      [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
        sum = sum + subgroupShuffleXor(sum, distance);
      }
      if (gl_SubgroupInvocationID == 0u) norm_parts[part * kColumns + c] = sum;
    }
  }
}

float column_scale(uint c, FusedRef fused) {
  precise float squares = norm_parts[c];
  [[unroll]] for (uint part = 1; part < kNormParts; part++) squares = squares + norm_parts[part * kColumns + c];
  return norm_scale(squares, fused.stream_width, fused.epsilon);
}

// Returns where the result of the tile's c-th column goes.
#ifdef BULKHEAD_EXPERTS
#define RESULT_COLUMN(c) pair_at(c)
#else
#define RESULT_COLUMN(c) (column0 + (c))
#endif

// Adds the lanes' sums by halving distances, and stores the subgroup's sums in `partials`; the part for this block
// begins at `room`. If there are several sums, each half of the lanes continues with half of the sums: the additions
// are the same, with a fraction of the exchanges. A lane ends with `left` sums from `first` on.
void leave_sums(uint room) {
  uint lane = gl_SubgroupInvocationID;
  uint left = kSums, first = 0;
  bool mine = true;
  [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
    bool upper = (lane & distance) != 0u;
    if (left > 1u) {
      left /= 2u;
      [[unroll]] for (uint i = 0; i < kSums / 2u; i++) {
        if (i < left) {
          float kept = upper ? sums[left + i] : sums[i];
          float sent = upper ? sums[i] : sums[left + i];
          precise float sum = kept + subgroupShuffleXor(sent, distance);
          sums[i] = sum;
        }
      }
      if (upper) first += left;
    } else {
      precise float sum = sums[0] + subgroupShuffleXor(sums[0], distance);
      sums[0] = sum;
      mine = mine && !upper;
    }
  }
  if (mine) {
    [[unroll]] for (uint i = 0; i < kSums; i++) {
      if (i < left) partials[room + gl_SubgroupID * kSums + first + i] = sums[i];
    }
  }
}

// Call it after product_begin(block). All of a workgroup's invocations must call it together. `room` is where this
// block's sums may be stored in `partials`.
void product_end(uint column0, uint block, uint room) {
  uint lane = gl_SubgroupInvocationID;
  uint thread = gl_SubgroupID * kLanes + lane;
  uint part = gl_SubgroupID % SPLIT;
  uint block_rows = (kSubgroups / SPLIT) * kRows;
  FusedRef fused = FusedRef(push.fused);

  // Result i of a thread is column `at / rows_each`, row `at % rows_each` of the block; with kQkv a result is two
  // rows.
  uint rows_each = EPILOGUE == kQkv ? block_rows / 2u : block_rows;
  uint step = EPILOGUE == kQkv ? 2u : 1u;
  uint count = EPILOGUE == kQkv ? Words(push.parameters).v[push.count_word] : 0u;
  Operands operands[kResultsOfThread];
  [[unroll]] for (uint i = 0; i < kResultsOfThread; i++) {
    uint at = i * kInvocations + thread;
    if (at < rows_each * kColumns) {
      operands[i] =
          operands_of(RESULT_COLUMN(at / rows_each), block * block_rows + at % rows_each * step, count, fused);
    }
  }
  if (SCALING == kScaledHere && SQUARES_EACH_BLOCK) sum_squares(column0, fused);

  [[unroll]] for (uint i = 0; i < kSums; i++) sums[i] = 0.0;
  take_columns(column0);
  uint group = part * kLanes + lane;
  while (group < push.groups) {
    add_group(group);
    group += kLanes * SPLIT;
    if (group < push.groups) load_group(group);
  }

  leave_sums(room);
  barrier();

  [[unroll]] for (uint i = 0; i < kResultsOfThread; i++) {
    uint at = i * kInvocations + thread;
    if (at < rows_each * kColumns) {
      uint c = at / rows_each, row = at % rows_each * step;
      uint from = room + (row / kRows) * SPLIT * kSums + (row % kRows) * kColumns + c;
      uint second_from = from;
      if (EPILOGUE == kGated) second_from = from + kRows * kColumns;
      if (EPILOGUE == kQkv) {
        second_from = room + ((row + 1u) / kRows) * SPLIT * kSums + ((row + 1u) % kRows) * kColumns + c;
      }
      precise float value = partials[from];
      precise float second = partials[second_from];
      for (uint s = 1; s < SPLIT; s++) {
        value = value + partials[from + s * kSums];
        second = second + partials[second_from + s * kSums];
      }
      float scale = SCALING == kScaledHere ? column_scale(c, fused) : 1.0;
#ifdef BULKHEAD_EXPERTS
      if (c >= tile_count) continue;
#endif
      finish_result(RESULT_COLUMN(c), block * block_rows + row, value, second, scale, operands[i], fused);
    }
  }
}
