// Compares what the executor computes of small random models with an evaluation in double (tiny_model.hpp).
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "tiny_model.hpp"
#include "transformer_harness.hpp"

namespace bulkhead::forward {

using model::testing::GgufBuilder;
using tiny::Facts;
using tiny::Function;

// A model, a prompt and its greedy continuation, in which no choice is a matter of rounding.
struct Case {
  tiny::Model model;
  std::vector<TokenId> tokens;  // the prompt, then the continuation
  std::vector<tiny::Vector> logits;
  std::size_t prompt = 0;
};

inline double margin_of(const tiny::Vector& logits) {
  tiny::Vector sorted = logits;
  std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
  return sorted[0] - sorted[1];
}

inline double logprob_of(const tiny::Vector& logits, TokenId token) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits)
    sum += std::exp(logit - most);
  return logits[token] - most - std::log(sum);
}

inline Case find_case(const Facts& facts, std::size_t prompt) {
  constexpr std::size_t kSteps = 6;
  constexpr double kLeastMargin = 0.1, kLeastGap = 0.05;
  for (unsigned seed = 1;; ++seed) {
    Case made{tiny::Model(facts, seed), {}, {}, prompt};
    made.model.need_gap(kLeastGap);
    for (std::size_t i = 0; i < prompt; ++i)
      made.tokens.push_back(static_cast<TokenId>((i * 37 + seed * 11) % facts.vocabulary));
    bool clear = true;
    for (std::size_t i = 0; clear && i < kSteps; ++i) {
      made.logits.push_back(made.model.logits(made.tokens));
      const tiny::Vector& last = made.logits.back();
      clear = !last.empty() && margin_of(last) > kLeastMargin;
      if (!clear) break;
      made.tokens.push_back(
          static_cast<TokenId>(std::max_element(last.begin(), last.end()) - last.begin()));
    }
    if (clear) return made;
  }
}

// Loads a small model with these facts and compares its greedy continuation of a prompt with the evaluation in double.
class Architectures : public TransformerTest {
 protected:
  Loaded load_made(const tiny::Model& made, const std::string& architecture,
                   const Options& options) {
    const std::filesystem::path name =
        std::filesystem::temp_directory_path() /
        ("bulkhead-" + architecture + "-" + std::to_string(::getpid()));
    const std::string path = name.string() + ".gguf";
    std::ofstream(path, std::ios::binary) << made.file();
    Loaded loaded = load(name.string(), options);
    std::filesystem::remove(path);
    return loaded;
  }

  // `lanes`: with the kernels of GPUs on a CPU, too.
  void expect_computes(const Facts& facts, std::size_t prompt, bool lanes = false) {
    SCOPED_TRACE(facts.architecture);
    const Case wanted = find_case(facts, prompt);
    Options options;
    options.chunk = 16;
    options.lanes = lanes;
    const Loaded model = load_made(wanted.model, facts.architecture, options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    // Matrix units take products' inputs as halves.
    const double allowed = has_units(executor) ? 0.03 : 0.02;
    const std::vector<std::vector<PageIndex>> pages{
        pages_for(executor, static_cast<std::uint32_t>(wanted.tokens.size()))};
    const std::vector<TokenId> given(wanted.tokens.begin(),
                                     wanted.tokens.begin() + static_cast<std::ptrdiff_t>(prompt));
    std::vector<Row> rows;
    for (std::size_t at = 0; at < prompt; at += options.chunk)
      rows = step(executor, columns_of(given, 0, Output::kLogits, at, options.chunk), pages);
    double worst = 0;
    for (std::size_t i = 0; i < wanted.logits.size(); ++i) {
      ASSERT_EQ(rows.size(), 1U);
      const TokenId best = wanted.tokens[prompt + i];
      ASSERT_EQ(rows[0].best, best) << "step " << i;
      const double difference =
          std::abs(static_cast<double>(rows[0].logprob) - logprob_of(wanted.logits[i], best));
      worst = std::max(worst, difference);
      ASSERT_LT(difference, allowed) << "step " << i;
      rows = step(executor, {{best, static_cast<std::uint32_t>(prompt + i), 0, Output::kLogits}},
                  pages);
    }
    std::printf("%s: log-probabilities within %.5f\n", facts.architecture.c_str(), worst);
  }

  // A prompt in chunks, drafts, a split over two devices, and the kernels of GPUs give the same bits.
  void expect_keeps_bits(const Facts& facts) {
    const tiny::Model made(facts, 3);
    std::vector<TokenId> prompt;
    for (std::size_t i = 0; i < 50; ++i)
      prompt.push_back(static_cast<TokenId>((i * i * 5 + i * 17) % facts.vocabulary));
    for (const bool lanes : {false, true}) {
      Options options;
      options.lanes = lanes;
      const Loaded model = load_made(made, facts.architecture, options);
      ASSERT_NE(model.executor, nullptr);
      const auto whole = generate(*model.executor, prompt, 6, 64, Output::kLogits);
      const std::vector<std::uint32_t> cuts{33, 1, 2, 7};
      expect_same_bits(generate(*model.executor, prompt, 6, cuts, Output::kLogits), whole,
                       "chunks");
      expect_same_bits(generate_with_drafts(*model.executor, prompt, whole), whole, "drafts");
      if (lanes) continue;
      options.stages = 2;
      const Loaded split = load_made(made, facts.architecture, options);
      ASSERT_NE(split.executor, nullptr);
      expect_same_bits(generate(*split.executor, prompt, 6, 20, Output::kLogits), whole, "a split");
      expect_same_bits(generate_with_drafts(*split.executor, prompt, whole), whole,
                       "drafts of a split");
    }
  }
};

}  // namespace bulkhead::forward
