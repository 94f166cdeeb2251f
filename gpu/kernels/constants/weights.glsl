// What kernels know about a tensor type whose weights are stored in planes (weights.glsl): its row (tensor_row.hpp).
CONSTANTS(WeightConstants, 0)
CONSTANT(0, kTensorType, type, 0u)         // its index among the types (tensor_types.glsl)
// of sixteen bytes per group: 1 for nibbles, 2 bytes, 4 halves, 8 floats; or 0
CONSTANT(1, kPlanes, planes, 1u)
CONSTANT(2, kHighBytes, high_bytes, 0u)    // per group: 0, 4, 8 or 12
CONSTANT(3, kScaleBytes, scale_bytes, 0u)  // per group
CONSTANT(4, kSuperBytes, super_bytes, 0u)  // per eight groups
CONSTANT(5, kCodebook0, codebook_0, 0u)    // the values of nibbles, plus 128
CONSTANT(6, kCodebook1, codebook_1, 0u)
CONSTANT(7, kCodebook2, codebook_2, 0u)
CONSTANT(8, kCodebook3, codebook_3, 0u)
CONSTANTS_END
