#include "worker/model/hash_maps.hpp"

#include <sys/random.h>

#include <chrono>

namespace bulkhead::model {

std::uint64_t process_hash_seed() {
  static const std::uint64_t seed = [] {
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
      random =
          static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    return random;
  }();
  return seed;
}

}  // namespace bulkhead::model
