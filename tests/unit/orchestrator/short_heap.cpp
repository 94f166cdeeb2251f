#include "short_heap.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace bulkhead::test {

std::atomic<bool> short_of_memory{false};
std::atomic<int> granted{0};
std::atomic<int> refusals{0};

}  // namespace bulkhead::test

namespace {

const pthread_t main_thread = ::pthread_self();
void* allocate(std::size_t bytes, std::size_t alignment) {
  if (bulkhead::test::short_of_memory && ::pthread_equal(::pthread_self(), main_thread) == 0 &&
      --bulkhead::test::granted < 0) {
    ++bulkhead::test::refusals;
    throw std::bad_alloc();
  }
  void* const memory =
      alignment == 0
          ? std::malloc(std::max<std::size_t>(bytes, 1))
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
