// The heads of a model's attention, and the format of its keys and values (kv_layout.glsl).
CONSTANTS(HeadConstants, 1)
CONSTANT(1, kHead, head, 64u)  // entries
CONSTANT(2, kHeads, heads, 8u)
CONSTANT(3, kKvHeads, kv_heads, 8u)
CONSTANT(4, kKvFormat, kv_format, 0u)  // KvFormat
CONSTANTS_END
