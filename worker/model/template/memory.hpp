// Counts the memory that a template's values take, so that a hostile template ends with an error instead of
// exhausting the worker's memory.
//
// Each thread has a count. Values may outlive a scope or move to another thread: a scope only looks at the difference
// since its start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace bulkhead::jinja {

// Adds to the thread's count; throws TemplateError (kLimit) if that exceeds the innermost scope's limit.
void charge_memory(std::size_t bytes);
void refund_memory(std::size_t bytes) noexcept;

// While it lives, this thread may take `max_bytes` more than it has now. An inner scope can't extend an outer one.
class MemoryScope {
 public:
  explicit MemoryScope(std::size_t max_bytes);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  std::int64_t outer_limit_;
};

template <typename T>
struct CountedAllocator {
  using value_type = T;
  CountedAllocator() = default;
  template <typename U>
  CountedAllocator(const CountedAllocator<U>&) {}  // NOLINT: implicit, as allocators convert

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / 2 / sizeof(T))
      throw std::length_error("a template asks for more memory than there can be");
    charge_memory(count * sizeof(T));
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* at, std::size_t count) noexcept {
    refund_memory(count * sizeof(T));
    std::allocator<T>().deallocate(at, count);
  }
  template <typename U>
  bool operator==(const CountedAllocator<U>&) const {
    return true;
  }
};

using CountedString = std::basic_string<char, std::char_traits<char>, CountedAllocator<char>>;
template <typename T>
using CountedVector = std::vector<T, CountedAllocator<T>>;

}  // namespace bulkhead::jinja
