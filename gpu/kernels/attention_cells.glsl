// Cells of eight entries (kv_layout.glsl), for both kernels of attention by matrix units (attention_units.comp,
// attention_tiles.comp). A lane keeps a cell as it is stored while it loads others, so that its loads do not wait for
// each other. The cell becomes halves where the unit takes it, or before it moves to shared memory.
//
// An entry of pages of bytes becomes the half nearest to (byte - 128) * scale: the difference is exact, and the product
// is rounded once. If it is beyond the largest half, it becomes that half, as in a page of halves (half_bits()).
//
// The includer has kv_layout.glsl and unit_fragments.glsl. With pages of bytes it calls hide_constants() first.
#include "centred.glsl"

layout(buffer_reference, std430, buffer_reference_align = 2) readonly buffer Shorts { uint16_t v[]; };

// Loads a cell as it is stored: four words of halves, or two words of bytes and a half, which is the scale. `cells` is
// the address of the cell with the index 0. `scale` is the address of the scale; only pages of bytes have one. (If this
// function returned the cell, glslc would make its arguments precise where the cell leads to a precise variable.)
void load_cell(uint64_t cells, uint index, uint64_t scale, out uvec4 stored) {
  if (kKvFormat == kKvQ8) {
    stored = uvec4(Pairs(cells).v[index], uint(Shorts(scale).v[0]), 0u);
  } else {
    stored = Quads(cells).v[index];
  }
}

// Returns a word's four entries, in order.
uvec2 halves_of_bytes(uint word, f16vec2 scale) {
  precise f16vec2 even = centred(word & 0x00ff00ffu | halves_of_1024, 128.0) * scale;
  precise f16vec2 odd = centred((word >> 8) & 0x00ff00ffu | halves_of_1024, 128.0) * scale;
  const f16vec2 largest = f16vec2(65504.0);
  even = clamp(even, -largest, largest);
  odd = clamp(odd, -largest, largest);
  return uvec2(packFloat2x16(f16vec2(even.x, odd.x)), packFloat2x16(f16vec2(even.y, odd.y)));
}

// Returns the eight entries of a cell, in order.
uvec4 halves_of_cell(uvec4 stored) {
  uvec4 made = stored;
  if (kKvFormat == kKvQ8) {
    f16vec2 scale = unpackFloat2x16(stored.z).xx;
    made = uvec4(halves_of_bytes(stored.x, scale), halves_of_bytes(stored.y, scale));
  }
  return made;
}
