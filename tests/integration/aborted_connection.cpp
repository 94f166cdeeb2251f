// Plays a client that ends its connection just before bulkheadd accepts it, for a daemon that loads this library
// (LD_PRELOAD): accept() takes the connection and fails with ECONNABORTED, once for each time that the file
// $ABORTS_CONNECTION is made. It links none of the product's libraries.
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

extern "C" int accept(int socket, sockaddr* address, socklen_t* size) {
  const int accepted = ::accept4(socket, address, size, 0);
  const char* const file = std::getenv("ABORTS_CONNECTION");
  if (accepted < 0 || file == nullptr || ::unlink(file) != 0) return accepted;
  ::close(accepted);
  errno = ECONNABORTED;
  return -1;
}
