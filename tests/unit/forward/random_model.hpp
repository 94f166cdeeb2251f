// Small models with random weights and random hyperparameters that their architecture allows: odd numbers of heads,
// experts and groups, widths that are no multiple of anything, windows around a page's size, every tensor type where a
// row's length allows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bulkhead::forward {

struct RandomModel {
  std::string architecture;
  std::string description;  // its hyperparameters, for messages
  std::string bytes;        // of a GGUF file; empty: there is none
  std::string refusal;      // why there is none
  std::uint32_t vocabulary = 0;
  std::uint32_t context = 0;
};

// The same seed gives the same model. The architecture is the seed's, too, unless one is named.
RandomModel random_model(std::uint64_t seed, const std::string& architecture = "");

// The same with a block behind the layers that drafts tokens, for an architecture that has such blocks.
RandomModel random_model_that_drafts(std::uint64_t seed, const std::string& architecture);

// The same as random_model() with one number that is likely to be wrong, and with weights that are all zeros.
RandomModel model_with_a_wild_number(std::uint64_t seed);

// Tokens of a text for the model.
std::vector<std::uint32_t> random_text(const RandomModel& model, std::uint64_t seed,
                                       std::size_t length);

}  // namespace bulkhead::forward
