// What follows a product's push constants if its matrix is that of experts.
uint64_t tiles, list;  // choose.comp's
