uint64_t rows;    // [row][stride]
uint64_t parameters;
uint width;
uint stride;
uint count_word;  // which of the parameters' counts bounds the rows
float cap;
