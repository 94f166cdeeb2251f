// Positions in a page of the KV cache.
const uint kPageTokens = 32;
