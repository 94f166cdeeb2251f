// Runs a test that is a script and starts a daemon, with compiled kernels in the folders of the daemon's workers.
//   lend_kernels CACHES WORKER... -- COMMAND...    CACHES becomes the command's XDG_CACHE_HOME; a worker is
//                                                  MODEL-NUMBER or NAME=MODEL
// Its exit code is the command's.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/lent_kernels.hpp"

int main(int argc, char** argv) {
  int at = 2;
  std::vector<std::string> workers;
  for (; at < argc && std::string(argv[at]) != "--"; ++at)
    workers.emplace_back(argv[at]);
  if (at + 1 >= argc) {
    std::fprintf(stderr, "usage: lend_kernels CACHES WORKER... -- COMMAND...\n");
    return 2;
  }
  const bulkhead::test::LentKernels lent(std::filesystem::path(argv[1]) / "bulkhead", workers);
  const pid_t child = ::fork();
  if (child < 0) {
    std::perror("lend_kernels: fork");
    return 2;
  }
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setenv("XDG_CACHE_HOME", argv[1], 1);
    ::execvp(argv[at + 1], argv + at + 1);
    std::perror(argv[at + 1]);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
