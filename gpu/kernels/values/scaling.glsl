// Whether a product's input is normalised already. If not, the product computes the norm's scale from the residual
// stream (kHere), or norm_scales() computes it before, as in wide steps (kByMemory). All ways give the same bits.
VALUES(Scaling)
VALUE(kUnscaled, kNone, 0)
VALUE(kScaledHere, kHere, 1)
VALUE(kScaledByMemory, kByMemory, 2)
VALUES_END
