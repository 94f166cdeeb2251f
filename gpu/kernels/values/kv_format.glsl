// How keys and values are cached (kv_layout.glsl).
VALUES(KvFormat)
VALUE(kKvHalf, kF16, 0)
VALUE(kKvFloat, kF32, 1)
VALUE(kKvQ8, kQ8, 2)  // bytes, and for each 32 neighbouring entries of a head a half that they are multiples of
VALUES_END
