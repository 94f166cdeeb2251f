// Stores attention's results as inputs of the next product. Usually a column is one input with its heads one after
// another. If values are the first entries of keys (kValueEntries), each head is a separate input, number column *
// kHeads + head, because each head has its own matrix in the next product.
//
// Include this file behind attention_state.glsl and a push block with out_address, out_stride and padded_width.
void store_head(uint column, uint head, uint entry, float value) {
  if (kValueEntries == 0u) {
    if (entry < kHead) store_input(push.out_address, column, push.out_stride, head * kHead + entry, value, kOutForm);
  } else if (entry < kValueEntries) {
    store_input(push.out_address, column * kHeads + head, push.out_stride, entry, value, kOutForm);
  }
}

// Writes the zeros that pad the results of heads head0 to head0 + heads - 1. `count` invocations share the work; the
// caller is invocation `index` of them.
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
