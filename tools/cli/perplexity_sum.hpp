// Perplexity as llama.cpp's `llama-perplexity` defines it (tools/perplexity/perplexity.cpp). It cuts the tokens of a
// text into chunks of n and drops the rest at the end. The model reads each chunk alone, with BOS in place of the
// first token if it has one. The tokens n/2 + 1 to n - 1 (counted from 0) of each chunk count: they have half a chunk
// or more before them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bulkhead::cli {

// Returns the index of the first token that counts in a chunk of `size` tokens.
constexpr std::size_t first_counted(std::size_t size) {
  return size / 2 + 1;
}

class PerplexitySum {
 public:
  // Adds a chunk: the natural logarithms of its tokens' probabilities. The first `first_counted()` of them are
  // ignored.
  void add_chunk(std::span<const double> logprobs) {
    for (std::size_t i = first_counted(logprobs.size()); i < logprobs.size(); ++i) {
      sum_ -= logprobs[i];
      squares_ += logprobs[i] * logprobs[i];
      ++count_;
    }
  }

  std::uint64_t count() const { return count_; }
  // These need at least one counted token.
  double mean() const { return sum_ / static_cast<double>(count_); }
  double perplexity() const { return std::exp(mean()); }
  // Returns the standard error of perplexity(): the mean's error times the perplexity (its derivative). 0 for one
  // token.
  double error() const {
    if (count_ < 2) return 0;
    const double variance = squares_ / static_cast<double>(count_) - mean() * mean();
    if (!(variance > 0)) return 0;
    return std::sqrt(variance / static_cast<double>(count_ - 1)) * perplexity();
  }

 private:
  double sum_ = 0, squares_ = 0;  // sums of the negative logarithms and of their squares
  std::uint64_t count_ = 0;
};

}  // namespace bulkhead::cli
