// The standard descriptors of a program whose parent has closed some of them.
#pragma once

namespace bulkhead {

// Opens /dev/null in place of each of the descriptors 0, 1 and 2 that is closed: with `flags_of_input` for 0, with
// `flags_of_output` for 1 and 2 (O_RDWR and the like). Otherwise the first files that the program opens would get these
// numbers, and it would read its input from them or write its output into them. Call it first in main().
void open_standard_descriptors(int flags_of_input, int flags_of_output);

}  // namespace bulkhead
