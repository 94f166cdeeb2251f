// Computes draws, adjusted logits and log-probabilities of some rows on the device, in the passes of a step, and
// compares draws with the CPU sampler's.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/unit/forward/kernel_harness.hpp"
#include "worker/engine/sampler.hpp"

namespace bulkhead::forward {

// A draw may differ from the CPU's if a threshold is this close to a token's edge.
inline constexpr double kNearThreshold = 1e-5;

// A row of logits, and what a request asks of its n-th draw.
struct SampleCase {
  std::vector<float> row;
  ipc::Sampling sampling;
  std::uint64_t n = 0;
  std::vector<std::uint32_t> mask;  // a bit for each token that may come; empty: all may
  std::vector<engine::LogitEdit> list = {}, ahead = {};

  engine::Adjustment adjustment() const {
    return {mask, {list, ahead, sampling.repetition_penalty}};
  }
};

// Returns the row as the case's edits change it.
std::vector<float> edited_row(const SampleCase& one);

class SampleTest : public KernelTest {
 protected:
  // The buffers of a step whose greedy choices have been made; further kernels read and write them.
  struct Chosen {
    std::uint32_t outputs = 0, vocabulary = 0, chunks = 0;
    gpu::Buffer logits, asked, partials, results, counts, sums, cuts;
    gpu::Buffer adjustments, edits, before;

    gpu::kernels::GreedyPush greedy() const {
      gpu::kernels::GreedyPush push{};
      push.logits = logits.address();
      push.partials = partials.address();
      push.results = results.address();
      push.parameters = counts.address();
      push.vocabulary = push.stride = vocabulary;
      push.chunks = chunks;
      return push;
    }

    gpu::kernels::SamplePush push(std::uint64_t told = 0) const {
      return {logits.address(),
              partials.address(),
              results.address(),
              counts.address(),
              asked.address(),
              vocabulary,
              vocabulary,
              chunks,
              0,
              sums.address(),
              told,
              cuts.address()};
    }
  };
  // Makes the greedy choices. `rows`: the logits of all outputs, one row after the other.
  Chosen choose_greedily(const gpu::kernels::Mapping& mapping, const std::vector<float>& rows,
                         const std::vector<gpu::kernels::SampleChoice>& choices);
  // Runs the passes of the draws. `told`: the address of the rows of log-probabilities, or 0.
  void draw(const gpu::kernels::Mapping& mapping, const Chosen& chosen, std::uint64_t told = 0);
  // Adjusts the logits of the cases' outputs and makes the choices again. `keeps`: keeps the logits as they were.
  void adjust(const gpu::kernels::Mapping& mapping, Chosen& chosen,
              const std::vector<SampleCase>& cases, bool keeps);
  static gpu::kernels::EditLogitsPush edit_push(const Chosen& chosen, std::uint64_t told = 0);
  std::vector<std::uint32_t> chosen_tokens(const Chosen& chosen);

  // Returns the tokens that the device draws for all cases, which are outputs of one step.
  std::vector<std::uint32_t> draw(const gpu::kernels::Mapping& mapping,
                                  const std::vector<SampleCase>& cases);

  // What the device reports of an output: the token that it chose, by greedy choice or by a draw, and log-probabilities
  // of that token and of the best ones.
  struct Told {
    std::uint32_t token = 0;
    gpu::kernels::LogprobRow row{};
    float logprob(float logit) const {
      return static_cast<float>(logit -
                                (std::log(static_cast<double>(row.sum) * 0x1p-40) + row.best));
    }
  };
  std::vector<Told> tell(const gpu::kernels::Mapping& mapping,
                         const std::vector<std::vector<float>>& rows,
                         const std::vector<std::int32_t>& wanted, bool draws);

  struct Count {
    std::size_t draws = 0, parted = 0;
  };
  // Compares the draws with the CPU sampler's, and counts both those and the ones that differ near a threshold.
  void compare(const gpu::kernels::Mapping& mapping, const std::vector<SampleCase>& cases,
               Count& count);
};

}  // namespace bulkhead::forward
