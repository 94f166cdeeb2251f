// What follows norm_push.glsl.
uint64_t bias;  // [width]
