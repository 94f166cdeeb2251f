// Perplexity as llama.cpp's `llama-perplexity` defines it (tools/perplexity/perplexity.cpp): the tokens of a text
// are cut into chunks of n; each is read alone, its first token replaced by BOS where the model has one; of each
// chunk the tokens n/2 + 1 to n - 1 (counted from 0) count, which have half a chunk or more before them. What is left
// at the end is not read. Knows nothing of connections.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bulkhead::cli {

// The first token of a chunk of `size` that counts.
constexpr std::size_t first_counted(std::size_t size) {
  return size / 2 + 1;
}

class PerplexitySum {
 public:
  // Natural logarithms of the probabilities of a chunk's tokens; the first `first_counted()` are not looked at.
  void add_chunk(std::span<const double> logprobs) {
    for (std::size_t i = first_counted(logprobs.size()); i < logprobs.size(); ++i) {
      sum_ -= logprobs[i];
      squares_ += logprobs[i] * logprobs[i];
      ++count_;
    }
  }

  std::uint64_t count() const { return count_; }
  // Of at least one token.
  double mean() const { return sum_ / static_cast<double>(count_); }
  double perplexity() const { return std::exp(mean()); }
  // Standard error of perplexity(): that of the mean, times the perplexity (its derivative). 0 for one token.
  double error() const {
    if (count_ < 2) return 0;
    const double variance = squares_ / static_cast<double>(count_) - mean() * mean();
    if (!(variance > 0)) return 0;
    return std::sqrt(variance / static_cast<double>(count_ - 1)) * perplexity();
  }

 private:
  double sum_ = 0, squares_ = 0;  // of negative logarithms
  std::uint64_t count_ = 0;
};

}  // namespace bulkhead::cli
