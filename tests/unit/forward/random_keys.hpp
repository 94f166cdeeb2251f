// Random hyperparameters of an architecture (random_model.hpp).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>

#include "tests/unit/model/gguf_builder.hpp"

namespace bulkhead::forward {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }
  bool one_in(std::uint32_t of) { return below(of) == 0; }
  template <typename T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::uint32_t>(values.size()))];
  }

 private:
  std::mt19937_64 random_;
};

struct RandomKeys {
  std::uint32_t vocabulary = 0, context = 0, layers = 0;
  std::string description;
};
// Adds all keys of a model of that architecture.
RandomKeys add_random_keys(const std::string& architecture, Draw& draw,
                           model::testing::GgufBuilder& file);

}  // namespace bulkhead::forward
