// Small integers in both halves of a word, as halves.
//
// The includer has unit_fragments.glsl, and calls hide_constants() first.

// 1024 in both halves of a word. The compiler must not know that it is a single number: an instruction that masks by
// one number and adds another can encode only one of them, and would become two instructions.
uint halves_of_1024;
void hide_constants(uint64_t address) {
  halves_of_1024 = 0x64006400u + ((unit_lane + uint(address >> 63)) >> 5);  // no address is that high
}

// Of integers in both halves of a word with halves_of_1024: less `bias`, exact.
f16vec2 centred(uint word, const float bias) {
  precise f16vec2 n = unpackFloat2x16(word) - f16vec2(1024.0 + bias);
  return n;
}
