// This field follows those of norm_push.glsl.
uint64_t bias;  // [width], or 0
