// A heap with the fault point "heap.allocate". In a program that links this, operator new fails (or the process dies
// in it) where a plan says so.
#include "config/base/fault_points.hpp"
#include "tests/support/replaced_heap.hpp"

bool bulkhead::test::refuses_memory() {
  return fault::fails("heap.allocate");
}
