uint64_t pieces;  // ChecksumPiece (checksum.hpp): {source, first place}, then {quads, which sum}
uint64_t sums;    // four words each, zeroed
