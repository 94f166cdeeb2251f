#include "orchestrator/memory_reserve.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <new>

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kBytes = std::size_t{8} << 20;
std::atomic<void*> block{nullptr};

void release_or_throw() {
  void* const taken = block.exchange(nullptr);
  if (taken == nullptr) throw std::bad_alloc();
  ::munmap(taken, kBytes);
}

}  // namespace

void MemoryReserve::install() {
  refill();
  std::set_new_handler(release_or_throw);
}

void MemoryReserve::refill() {
  if (block.load() != nullptr) return;
  void* const taken =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (taken == MAP_FAILED) return;
  void* expected = nullptr;
  if (!block.compare_exchange_strong(expected, taken)) ::munmap(taken, kBytes);
}

}  // namespace bulkhead::orchestrator
