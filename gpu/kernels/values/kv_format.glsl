// The format of cached keys and values (kv_layout.glsl).
VALUES(KvFormat)
VALUE(kKvHalf, kF16, 0)
VALUE(kKvFloat, kF32, 1)
VALUE(kKvQ8, kQ8, 2)  // bytes; 32 neighbouring entries of a head are multiples of one half
VALUES_END
