// What a product does with its sums (epilogue.glsl).
VALUES(Epilogue)
VALUE(kStore, kStore, 0)
VALUE(kAdd, kAdd, 1)
VALUE(kGated, kGated, 2)
VALUE(kQkv, kQkv, 3)  // not in the rows mapping
VALUES_END
