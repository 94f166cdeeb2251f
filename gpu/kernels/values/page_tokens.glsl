// Positions in a page of the KV cache.
NUMBER(kPageTokens, 32)
