// These fields follow a product's push constants if its matrices are those of experts.
uint64_t tiles, list;  // choose.comp's
