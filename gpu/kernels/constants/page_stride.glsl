// By how many bytes a page's number counts (kv_layout.glsl).
CONSTANTS(PageConstants, 30)
CONSTANT(30, kPageStride, page_stride, 0u)  // 0: the bytes of a page
CONSTANTS_END
