#include "config/base/standard_descriptors.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace bulkhead {

void open_standard_descriptors(int flags_of_input, int flags_of_output) {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0)
      // open() takes the lowest free number, which is `fd`
      (void)::open("/dev/null", fd == 0 ? flags_of_input : flags_of_output);
  }
}

}  // namespace bulkhead
