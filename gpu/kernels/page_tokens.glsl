// Positions in a page of the KV cache.
#ifndef BULKHEAD_PAGE_TOKENS
#define BULKHEAD_PAGE_TOKENS
#include "values/page_tokens.glsl"
#endif
