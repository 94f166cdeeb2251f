// Memory for the moment when there is none: a block that is given back to the system when an
// allocation fails, so that what has to be done then (answering, closing, logging) can be done. The
// allocation that failed is tried once more; if it is a large one it fails again, and throws.
#pragma once

namespace bulkhead::orchestrator {

class MemoryReserve {
 public:
  // Makes it operator new's handler. Once, at the start.
  static void install();
  // Takes the block again, if it is gone and can be had. After an exception has been dealt with.
  static void refill();
};

}  // namespace bulkhead::orchestrator
