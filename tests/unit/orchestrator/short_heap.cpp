#include "short_heap.hpp"

#include <pthread.h>

#include "tests/support/replaced_heap.hpp"

namespace bulkhead::test {
namespace {

const pthread_t main_thread = ::pthread_self();

}  // namespace

std::atomic<bool> short_of_memory{false};
std::atomic<int> granted{0};
std::atomic<int> refusals{0};

bool refuses_memory() {
  if (!short_of_memory || ::pthread_equal(::pthread_self(), main_thread) != 0 || --granted >= 0)
    return false;
  ++refusals;
  return true;
}

}  // namespace bulkhead::test
