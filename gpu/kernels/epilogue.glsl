// What a product on a GPU does with its sums, so that no kernel is needed between one product and the next:
//
//   kStore  the result itself
//   kAdd    added to the residual stream; the sum times the next norm's gain becomes the next product's input, and that
//           product scales its own sums (kScaling): so the norm needs no separate pass
//   kGated  gate function(gate) * up (gates.glsl), in the layout of the next product's input
//   kQkv    bias and rotation; q for attention, the new key and value to their page. The rows of q and k are ordered so
//           that two rows which rotate together are neighbours: a result is two rows
//
// The includer defines `push`, EPILOGUE, SCALING and OUT_FORM: constants in a kernel with one product, fields of an
// operation in the kernel that runs them all. INPUT_FORM is the form of every input on the device (store_input).
#include "gates.glsl"
// An input that is still to be normalised is stored smaller by this factor, so that a half can hold what a residual
// stream may reach; its scale is larger by the same factor. Both are exact.
const float kInputShrink = INPUT_FORM == kInputUnits ? 0.125 : 1.0;
// The input is still to be normalised: its scale is computed here from the residual stream, or by a separate kernel
// before.
#include "values/scaling.glsl"

#include "fused_operands.glsl"

// What finishing a result needs besides its sums. It is loaded early, so that finishing does not wait for it.
struct Operands {
  float a, b;       // kAdd: the present value and the next gain. kQkv: the biases
  vec2 fine, coarse;
  uint64_t at;      // kQkv: where the two rows' results go; 0: nowhere
  uint kind;
  float scale;
  float bias, second_bias;  // kBiased
};
const uint kPlain = 0, kQuery = 1, kKey = 2, kValue = 3, kTurns = 4;

// A result is one row; with kQkv it is rows `row` and row + 1.
Operands operands_of(uint column, uint row, uint count, FusedRef fused) {
  Operands o;
  o.a = o.b = 0.0;
  o.fine = o.coarse = vec2(0.0);
  o.at = 0ul;
  o.kind = kPlain;
  o.scale = 1.0;
  o.bias = o.second_bias = 0.0;
  if (row >= push.rows) return o;
  if (kBiased != 0u) {
    o.bias = Floats(fused.bias).v[BIAS_ROW(row)];
    if (EPILOGUE == kGated) o.second_bias = Floats(fused.second_bias).v[BIAS_ROW(row)];
  }
  if (SCALING == kScaledByMemory) o.scale = FloatsOut(fused.scales).v[INPUT_COLUMN(column)];
  if (EPILOGUE == kAdd) {
    o.a = FloatsOut(push.out_address + uint64_t(column) * push.out_stride * 4u).v[row];
    if (push.fused != 0ul && fused.next_gain != 0ul) o.b = Floats(fused.next_gain).v[row];
  }
  if (EPILOGUE == kQkv && column < count) {
    uvec4 info = ColumnsRef(push.parameters + 64u).v[column];
    uint position = info.y;
    uint at = fused.first_row + row;
    uint head = at / fused.head, entry = at % fused.head;
    if (fused.bias != 0ul) {
      o.a = Floats(fused.bias).v[at];
      o.b = Floats(fused.bias).v[at + 1u];
    }
    bool value = head >= fused.heads + fused.kv_heads;
    uint pair = entry >> 1;
    bool turns = !value && pair < fused.rope_pairs;
    if (turns) {
      o.fine = Vec2s(fused.fine + uint64_t(position & 255u) * fused.rope_pairs * 8u).v[pair];
      o.coarse = Vec2s(fused.coarse + uint64_t(position >> 8) * fused.rope_pairs * 8u).v[pair];
    }
    if (head < fused.heads) {
      o.kind = kQuery;
      o.at = fused.q + (uint64_t(column * fused.heads + head) * fused.head_padded + entry) * 4u;
    } else {
      uint entry_bytes = fused.kv_float != 0u ? 4u : 2u;
      uint head_bytes = kPageTokens * fused.head_padded * entry_bytes;
      uint page = Words(fused.pages).v[info.z + position / kPageTokens];
      uint slot = position % kPageTokens;
      uint kv_head = head - fused.heads - (value ? fused.kv_heads : 0u);
      uint64_t base = (value ? fused.values : fused.keys) + uint64_t(page) * fused.page_stride + kv_head * head_bytes;
      uint byte_in_row = entry * entry_bytes;
      o.kind = value ? kValue : kKey;
      o.at = base + (value ? slot * (fused.head_padded * entry_bytes) + byte_in_row
                           : ((byte_in_row >> 4) * kPageTokens + slot) * 16u + (byte_in_row & 15u));
    }
    if (turns) o.kind |= kTurns;
  }
  return o;
}

void finish_qkv(float a, float b, Operands o, FusedRef fused) {
  if (o.at == 0ul) return;
  precise float first = a + o.a;
  precise float second = b + o.b;
  if ((o.kind & kTurns) != 0u) {
    precise float cosine = fma(o.coarse.x, o.fine.x, -(o.coarse.y * o.fine.y));
    precise float sine = fma(o.coarse.y, o.fine.x, o.coarse.x * o.fine.y);
    precise float turned = fma(-second, sine, first * cosine);
    precise float other = fma(first, sine, second * cosine);
    first = turned;
    second = other;
  }
  if ((o.kind & 3u) == kQuery) {
    precise float x = first * fused.q_scale;
    precise float y = second * fused.q_scale;
    FloatsOut(o.at).v[0] = x;
    FloatsOut(o.at).v[1] = y;
  } else if (fused.kv_float != 0u) {
    WordsOut(o.at).v[0] = floatBitsToUint(first);
    WordsOut(o.at).v[1] = floatBitsToUint(second);
  } else {
    WordsOut(o.at).v[0] = half_bits(first) | (half_bits(second) << 16);
  }
}


// `second`: kGated's up row, kQkv's next row. `scale`: the column's scale, for SCALING == kScaledHere.
void finish_result(uint column, uint row, float value, float second, float scale, Operands o, FusedRef fused) {
  if (row >= push.written_rows) return;
  if (SCALING == kScaledByMemory) scale = o.scale;
  if (SCALING != kUnscaled) {
    precise float scaled = value * (scale * (1.0 / kInputShrink));
    precise float scaled_second = second * (scale * (1.0 / kInputShrink));
    value = scaled;
    second = scaled_second;
  }
  if (kBiased != 0u) {
    precise float biased = value + o.bias;
    precise float second_biased = second + o.second_bias;
    value = biased;
    second = second_biased;
  }
  if (EPILOGUE == kQkv) {
    finish_qkv(value, second, o, fused);
    return;
  }
  // The next matrix reads entries beyond the last row as part of its last group, so they are zero.
  bool beyond = row >= push.rows;
  if (EPILOGUE == kAdd) {
    precise float sum = o.a + value;
    if (!beyond) FloatsOut(push.out_address + uint64_t(column) * push.out_stride * 4u).v[row] = sum;
    if (push.fused != 0ul && fused.next_gain != 0ul) {
      precise float input_value = beyond ? 0.0 : sum * o.b * kInputShrink;
      store_input(fused.next_input, column, fused.next_stride, row, input_value, INPUT_FORM);
    }
  } else {
    float result = beyond ? 0.0 : EPILOGUE == kGated ? gated(kGate, value, second) : value;
    store_input(push.out_address, column, push.out_stride, row, result, OUT_FORM);
  }
}
