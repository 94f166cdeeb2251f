// The first process of the namespace of process ids in which a worker runs. A namespace needs one, and the worker must
// not be it: the kernel does not let a namespace's first process die of its own abort(). This process waits for the
// worker's end, and ends then. If this process ends earlier, the kernel kills the worker.
//
// The daemon starts it (orchestrator/supervisor/pid_namespace.hpp). It has one descriptor: 0, a pipe that ends once the
// worker is there. It is a program of its own so that it has no copy of the daemon's memory.
#include <linux/capability.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// The kernel numbers the processes of a new namespace one after another.
enum { kWorker = 2 };

int main(void) {
  prctl(PR_SET_NAME, "bulkhead-first");
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_DUMPABLE, 0);
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  const struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
  syscall(SYS_capset, &header, none);

  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  close(0);
  struct pollfd worker = {(int)syscall(SYS_pidfd_open, kWorker, 0), POLLIN, 0};
  if (worker.fd < 0) return 0;  // it has ended, or was not started
  while (poll(&worker, 1, -1) <= 0) {
  }
  return 0;
}
