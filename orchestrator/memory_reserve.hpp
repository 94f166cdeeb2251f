// A memory reserve: a block that is returned to the system when an allocation fails, so that the daemon can still do
// what is necessary then (answer, close, log). The failed allocation is tried once more; a large one fails again, and
// throws.
#pragma once

namespace bulkhead::orchestrator {

class MemoryReserve {
 public:
  // Makes it operator new's handler. Call it once, at the start.
  static void install();
  // Allocates the block again, if it is gone and there is memory. Call it after an exception has been handled.
  static void refill();
};

}  // namespace bulkhead::orchestrator
