// Tests the kernels that choose experts by their scores: scores by sigmoids or softmax, biases that change the choice
// but not the weights, and groups of experts. The tests compare the choice and the weights with an evaluation in
// float64. Steps of all widths must give the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "gpu/kernels/experts.hpp"
#include "kernel_harness.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

struct Choice {
  std::vector<std::uint32_t> experts;
  std::vector<double> weights;
};

// Returns the choice for a column's logits, as in section 2.1.2 of DeepSeek-V3's paper.
Choice exact_choice(const k::RouterShape& router, const std::vector<float>& logits,
                    const std::vector<float>& bias, double scale) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (router.sigmoid) {
    for (double& score : scores)
      score = 1 / (1 + std::exp(-score));
  } else {
    double sum = 0;
    for (double& score : scores)
      sum += score = std::exp(score);
    for (double& score : scores)
      score /= sum;
  }
  std::vector<double> ranks = scores;
  for (std::size_t i = 0; i < bias.size(); ++i)
    ranks[i] += static_cast<double>(bias[i]);
  const std::uint32_t size = router.experts / router.groups;
  std::vector<std::pair<double, std::uint32_t>> groups;
  for (std::uint32_t g = 0; g < router.groups; ++g) {
    std::vector<double> own(ranks.begin() + g * size, ranks.begin() + (g + 1) * size);
    std::sort(own.rbegin(), own.rend());
    groups.emplace_back(size > 1 ? -(own[0] + own[1]) : -own[0], g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::uint32_t> order;
  for (std::uint32_t expert = 0; expert < router.experts; ++expert) {
    for (std::uint32_t g = 0; g < router.groups_used; ++g) {
      if (groups[g].second == expert / size) order.push_back(expert);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return ranks[a] > ranks[b]; });
  Choice made;
  made.experts.assign(order.begin(), order.begin() + router.used);
  double sum = 0;
  for (const std::uint32_t expert : made.experts)
    sum += scores[expert];
  for (const std::uint32_t expert : made.experts)
    made.weights.push_back(scale * scores[expert] / (router.renormalise ? sum : 1));
  return made;
}

class ScoredChoice : public KernelTest {
 protected:
  ScoredChoice() : KernelTest(4711) {}

  // Returns the chosen experts, then the bits of the weights, of all columns.
  std::vector<std::uint32_t> choose(const k::Mapping& mapping, const k::RouterShape& router,
                                    const std::vector<std::vector<float>>& logits,
                                    const std::vector<float>& bias, float scale) {
    const auto count = static_cast<std::uint32_t>(logits.size());
    const k::RouteLayout layout = k::route_layout(router, count);
    const gpu::Buffer memory = empty(layout.bytes), counts = parameters(count),
                      biases = buffer(std::span<const float>(bias));
    for (std::size_t c = 0; c < logits.size(); ++c)
      std::memcpy(memory.mapped().data() + layout.logits + c * router.rows() * 4, logits[c].data(),
                  router.experts * 4);
    k::ChoosePush push{};
    push.logits = memory.address() + layout.logits;
    push.chosen = memory.address() + layout.chosen;
    push.weights = memory.address() + layout.weights;
    push.list = memory.address() + layout.list;
    push.tiles = memory.address() + layout.tiles;
    push.parameters = counts.address();
    push.scale = scale;
    if (!bias.empty()) push.choice_bias = biases.address();
    const k::ChoosePart part = count == 1 ? k::ChoosePart::kOneColumn : k::ChoosePart::kChoose;
    const k::ChooseVariant variant = k::choose(mapping, router, part, count, 8);
    run(variant.spec, push, variant.workgroups);
    std::vector<std::uint32_t> made(std::size_t{count} * router.used * 2);
    const std::size_t bytes = made.size() * 2;
    std::memcpy(made.data(), memory.mapped().data() + layout.chosen, bytes);
    std::memcpy(made.data() + made.size() / 2, memory.mapped().data() + layout.weights, bytes);
    return made;
  }

};

k::RouterShape router(std::uint32_t experts, std::uint32_t used, bool renormalise, bool sigmoid,
                      bool biased, std::uint32_t groups, std::uint32_t groups_used) {
  k::RouterShape made{experts, used, false, renormalise};
  made.sigmoid = sigmoid;
  made.biased_choice = biased;
  made.groups = groups;
  made.groups_used = groups_used;
  return made;
}

TEST_F(ScoredChoice, IsThatOfDouble) {
  const k::RouterShape routers[] = {
      router(64, 4, true, true, true, 1, 1),     router(256, 8, true, true, true, 8, 4),
      router(160, 6, false, false, false, 8, 3), router(12, 3, false, false, true, 4, 2),
      router(64, 6, true, false, true, 1, 1),    router(8, 2, true, true, false, 8, 3),
  };
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const k::RouterShape& each : routers) {
      SCOPED_TRACE(testing::Message() << name << ", " << each.experts << " experts");
      std::normal_distribution<float> normal;
      std::vector<float> bias(each.biased_choice ? each.experts : 0);
      for (float& value : bias)
        value = 0.1F * normal(random_);
      std::vector<std::vector<float>> logits(33, std::vector<float>(each.experts));
      for (auto& column : logits) {
        for (float& value : column)
          value = normal(random_);
        // Equal scores: the lower index is taken.
        if (bias.empty()) column[each.experts - 1] = column[each.experts - 2];
      }
      const float scale = 1.8F;
      const auto all = choose(mapping, each, logits, bias, scale);
      for (std::size_t c = 0; c < logits.size(); ++c) {
        const Choice wanted = exact_choice(each, logits[c], bias, static_cast<double>(scale));
        for (std::uint32_t place = 0; place < each.used; ++place) {
          ASSERT_EQ(all[c * each.used + place], wanted.experts[place]) << c << ' ' << place;
          float weight = 0;
          std::memcpy(&weight, &all[all.size() / 2 + c * each.used + place], 4);
          ASSERT_NEAR(weight, wanted.weights[place], 3e-6) << c << ' ' << place;
        }
        if (c >= 2) continue;
        const auto alone = choose(mapping, each, {logits[c]}, bias, scale);
        for (std::uint32_t i = 0; i < each.used; ++i) {
          ASSERT_EQ(alone[i], all[c * each.used + i]);
          ASSERT_EQ(alone[each.used + i], all[all.size() / 2 + c * each.used + i]);
        }
      }
    }
  }
}

// A hostile file can give the scores any numbers. No index must lie outside the experts.
TEST_F(ScoredChoice, OfWhatIsNoNumberAreSomeExperts) {
  const k::RouterShape each = router(16, 4, true, true, true, 4, 2);
  for (const auto& [name, mapping] : test_mappings(device())) {
    const std::vector<std::vector<float>> logits(2, std::vector<float>(16, std::nanf("")));
    const auto made = choose(mapping, each, logits, std::vector<float>(16, 0.0F), 1);
    for (std::size_t i = 0; i < made.size() / 2; ++i)
      ASSERT_LT(made[i], each.experts) << name;
  }
}

}  // namespace
}  // namespace bulkhead::forward
