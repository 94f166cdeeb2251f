// Random weights directly in a tensor type's format: the quantised ones are random bits with scales that give the
// wanted deviation. That is as fast as the generator, and needs no quantiser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/model/gguf.hpp"

namespace bulkhead::model_maker {

// A pure function of (seed, tensor, chunk): the result does not depend on which thread makes a chunk.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t tensor, std::uint64_t chunk);
  std::uint64_t next() {  // xoshiro256++ (Blackman and Vigna)
    const std::uint64_t result = rotl(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotl(state_[3], 45);
    return result;
  }
  void fill(std::span<std::byte> bytes);

 private:
  static std::uint64_t rotl(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  std::uint64_t state_[4];
};

// Writes whole blocks of `type` into `out` with weights of mean 0 and about this standard
// deviation.
void random_weights(model::TensorType type, double deviation, Random& random,
                    std::span<std::byte> out);
// F32 values in [0.9, 1.1].
void random_norm(Random& random, std::span<std::byte> out);
// F32 values in [-1, -0.01].
void random_rates(Random& random, std::span<std::byte> out);
// F32 factors of Llama 3's scaling (factor 32, frequencies 1 to 4, 8192 original positions).
void rope_factors(float rope_base, std::span<std::byte> out);

}  // namespace bulkhead::model_maker
