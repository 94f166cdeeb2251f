#include "worker/model/hash_maps.hpp"

#include "config/base/random.hpp"

namespace bulkhead::model {

std::uint64_t process_hash_seed() {
  static const std::uint64_t seed = random_u64();
  return seed;
}

}  // namespace bulkhead::model
