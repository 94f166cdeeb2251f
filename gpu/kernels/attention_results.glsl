// Where attention's results go. A column's heads lie behind each other, as the next product's input. Where values are the
// first entries of keys (kValueEntries), each head is an input of its own, because a matrix of its own comes next:
// [column][head] take the place of columns.
//
// The includer has attention_state.glsl and `push` with out_address, out_stride and padded_width.
void store_head(uint column, uint head, uint entry, float value) {
  if (kValueEntries == 0u) {
    if (entry < kHead) store_input(push.out_address, column, push.out_stride, head * kHead + entry, value, kOutForm);
  } else if (entry < kValueEntries) {
    store_input(push.out_address, column * kHeads + head, push.out_stride, entry, value, kOutForm);
  }
}

// Zeros behind the results of `heads` heads from `head0` on, by `count` invocations, of which this is the `index`th.
void pad_heads(uint column, uint head0, uint heads, uint index, uint count) {
  if (kValueEntries == 0u) {
    if (head0 != 0u) return;
    for (uint pad = kHeads * kHead + index; pad < push.padded_width; pad += count) {
      store_input(push.out_address, column, push.out_stride, pad, 0.0, kOutForm);
    }
    return;
  }
  for (uint head = head0; head < head0 + heads; head++) {
    for (uint pad = kValueEntries + index; pad < push.padded_width; pad += count) {
      store_input(push.out_address, column * kHeads + head, push.out_stride, pad, 0.0, kOutForm);
    }
  }
}
