// The count of a template's memory, at its edges.
#include "worker/model/template/memory.hpp"

#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "worker/model/template/template_error.hpp"

namespace bulkhead::jinja {
namespace {

constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

bool fits(std::size_t bytes) {
  try {
    charge_memory(bytes);
  } catch (const TemplateError&) {
    return false;
  }
  refund_memory(bytes);
  return true;
}

TEST(TemplateMemory, AScopeMayTakeAllThereIs) {
  const MemoryScope scope(kMost);
  EXPECT_TRUE(fits(1'000));
}

TEST(TemplateMemory, AnInnerScopeHasNoMoreThanTheOuterOne) {
  const MemoryScope outer(1'000);
  {
    const MemoryScope inner(100);
    EXPECT_TRUE(fits(100));
    EXPECT_FALSE(fits(101));
  }
  const MemoryScope inner(kMost);
  EXPECT_TRUE(fits(1'000));
  EXPECT_FALSE(fits(1'001));
}

// A thread frees values that another one has made, as when a template is replaced.
TEST(TemplateMemory, HoldsInAThreadThatHasFreedMoreThanItMade) {
  std::thread([] {
    refund_memory(1'000'000);
    const MemoryScope scope(2'000);
    EXPECT_TRUE(fits(2'000));
    EXPECT_FALSE(fits(2'001));
  }).join();
}

}  // namespace
}  // namespace bulkhead::jinja
