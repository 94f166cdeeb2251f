// Constants of rope_latent.comp. They follow HeadConstants, whose head size is the length of a cache row: the latent,
// then the entries that turn.
CONSTANTS(RopeLatentConstants, 5)
CONSTANT(5, kLatent, latent, 64u)      // entries
CONSTANT(6, kHalves, halves, 0u)       // pairs: 0: (2i, 2i + 1); 1: (i, i + pairs)
CONSTANTS_END
