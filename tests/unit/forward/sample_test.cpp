// Draws on the device against the CPU sampler's: the same token for the same row, parameters, seed
// and number, but where a threshold comes within 1e-5 of a token's edge. Those are counted.
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "kernel_harness.hpp"
#include "worker/engine/philox.hpp"
#include "worker/engine/sampler.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;
constexpr double kNear = 1e-5;

struct Case {
  std::vector<float> row;
  ipc::Sampling sampling;
  std::uint64_t n = 0;
  std::vector<std::uint32_t> mask;  // a bit for each token that may come; empty: all may
  std::vector<engine::LogitEdit> list = {}, ahead = {};

  engine::Adjustment adjustment() const {
    return {mask, {list, ahead, sampling.repetition_penalty}};
  }
};

std::vector<float> edited_row(const Case& one) {
  std::vector<float> row = one.row;
  engine::apply(one.adjustment().edits, row);
  return row;
}

// The same case with only the tokens that may come, and these tokens.
struct FewTokens {
  Case one;
  std::vector<std::uint32_t> ids;
};
FewTokens without_excluded(const Case& one) {
  FewTokens few{one, {}};
  const std::vector<float> edited = edited_row(one);
  few.one.row.clear();
  for (std::uint32_t id = 0; id < one.row.size(); ++id) {
    if (!one.mask.empty() && (one.mask[id / 32] >> (id % 32) & 1U) == 0) continue;
    few.ids.push_back(id);
    few.one.row.push_back(edited[id]);
  }
  return few;
}

// The sampler's definition in double, with a draw and a top-p of one's choice. The row may lack tokens of the
// vocabulary.
std::uint32_t by_definition(const Case& one, std::size_t vocabulary, double u, double top_p) {
  const auto& row = one.row;
  const auto& s = one.sampling;
  std::vector<std::uint32_t> order(row.size());
  for (std::uint32_t i = 0; i < order.size(); ++i)
    order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return row[a] > row[b]; });
  const bool ranked = s.top_k > 0 && s.top_k < vocabulary;
  if (ranked) order.resize(std::min<std::size_t>(s.top_k, order.size()));
  const double best = row[order[0]], scale = std::min(1.0F / s.temperature, FLT_MAX);
  const auto weight = [&](std::uint32_t id) { return std::exp((row[id] - best) * scale); };
  double whole = 0;
  for (const std::uint32_t id : order)
    whole += weight(id);
  std::vector<std::uint32_t> kept;
  double sum = 0;
  for (const std::uint32_t id : order) {
    if (!kept.empty() && s.top_p < 1 && sum >= top_p * whole) break;
    sum += weight(id);
    if (!kept.empty() && s.min_p > 0 &&
        (row[id] - static_cast<float>(best)) * static_cast<float>(scale) < std::log(s.min_p))
      continue;
    kept.push_back(id);
  }
  if (!ranked) std::sort(kept.begin(), kept.end());
  double total = 0;
  for (const std::uint32_t id : kept)
    total += weight(id);
  double left = u * total;
  for (const std::uint32_t id : kept) {
    if (left < weight(id)) return id;
    left -= weight(id);
  }
  return kept.back();
}

class SampleTest : public KernelTest {
 protected:
  // The buffers of a step whose greedy choices have been made; further kernels read and write them.
  struct Chosen {
    std::uint32_t outputs = 0, vocabulary = 0, chunks = 0;
    gpu::Buffer logits, asked, partials, results, counts, sums, cuts;
    gpu::Buffer adjustments, edits, before;

    k::GreedyPush greedy() const {
      k::GreedyPush push{};
      push.logits = logits.address();
      push.partials = partials.address();
      push.results = results.address();
      push.parameters = counts.address();
      push.vocabulary = push.stride = vocabulary;
      push.chunks = chunks;
      return push;
    }

    k::SamplePush push(std::uint64_t told = 0) const {
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
  Chosen choose_greedily(const k::Mapping& mapping, const std::vector<float>& rows,
                         const std::vector<k::SampleChoice>& choices) {
    Chosen chosen;
    chosen.outputs = static_cast<std::uint32_t>(choices.size());
    chosen.vocabulary = static_cast<std::uint32_t>(rows.size() / choices.size());
    chosen.chunks = (chosen.vocabulary + k::kGreedyChunk - 1) / k::kGreedyChunk;
    chosen.logits = buffer(std::span<const float>(rows));
    chosen.asked = buffer(std::span<const k::SampleChoice>(choices));
    chosen.partials = empty(std::uint64_t{chosen.outputs} * chosen.chunks * 16);
    chosen.results = empty(std::uint64_t{chosen.outputs} * 8);
    chosen.counts = parameters(chosen.outputs);
    chosen.sums = empty(std::uint64_t{chosen.outputs} * chosen.chunks * 8);
    // The kernels expect nothing of what is there.
    chosen.cuts = buffer(std::span<const std::uint32_t>(
        std::vector<std::uint32_t>(chosen.outputs * k::kSampleCutBytes / 4, 0xDEADBEEFU)));
    const k::GreedyPush greedy = chosen.greedy();
    run(k::greedy(mapping, k::GreedyPass::kChunks), greedy, chosen.outputs, chosen.chunks);
    run(k::greedy(mapping, k::GreedyPass::kAll), greedy, chosen.outputs);
    return chosen;
  }
  void draw(const k::Mapping& mapping, const Chosen& chosen, std::uint64_t told = 0) {
    const k::SamplePush push = chosen.push(told);
    // Fewer workgroups than outputs where they handle chunks.
    const std::uint32_t workgroups = (chosen.outputs + 2) / 3;
    run(k::sample(mapping, k::SamplePass::kClear), push, chosen.outputs);
    run(k::sample(mapping, k::SamplePass::kHistogram), push, workgroups, chosen.chunks);
    run(k::sample(mapping, k::SamplePass::kLast), push, chosen.outputs);
    run(k::sample(mapping, k::SamplePass::kSums), push, workgroups, chosen.chunks);
    run(k::sample(mapping, k::SamplePass::kDraw), push, chosen.outputs);
  }
  // Adjusts the logits of the cases' outputs and makes the choices again. `keeps`: keeps the logits as they were.
  void adjust(const k::Mapping& mapping, Chosen& chosen, const std::vector<Case>& cases,
              bool keeps) {
    std::vector<k::AdjustedRow> adjusted;
    auto choices = read<k::SampleChoice>(chosen.asked, chosen.outputs);
    std::vector<std::uint32_t> words;
    std::vector<engine::LogitEdit> edits;
    std::uint32_t kept = 0;
    for (const Case& one : cases) {
      edits.insert(edits.end(), one.list.begin(), one.list.end());
      edits.insert(edits.end(), one.ahead.begin(), one.ahead.end());
    }
    chosen.edits = buffer(std::span<const engine::LogitEdit>(edits));
    chosen.before = empty(std::max<std::size_t>(edits.size(), 1) * 4);
    std::uint64_t at = chosen.edits.address();
    for (std::uint32_t i = 0; i < cases.size(); ++i) {
      const Case& one = cases[i];
      if (one.mask.empty() && one.list.empty() && one.ahead.empty()) continue;
      choices[i].mode |= static_cast<std::uint32_t>(adjusted.size() + 1) << k::kAdjustedShift;
      k::AdjustedRow row{};
      row.output_index = i;
      if (!one.mask.empty()) row.masked = 1;
      words.insert(words.end(), one.mask.begin(), one.mask.end());
      words.resize((adjusted.size() + 1) * ((chosen.vocabulary + 31) / 32));
      row.list = at;
      row.edits = static_cast<std::uint32_t>(one.list.size());
      row.ahead = at += one.list.size() * sizeof(engine::LogitEdit);
      row.ahead_edits = static_cast<std::uint32_t>(one.ahead.size());
      at += one.ahead.size() * sizeof(engine::LogitEdit);
      row.repetition = one.adjustment().edits.repetition;
      row.inverse = one.adjustment().edits.inverse();
      if (keeps) row.before = chosen.before.address() + kept * 4;
      kept += row.edits + row.ahead_edits;
      adjusted.push_back(row);
    }
    std::vector<std::byte> bytes(k::kAdjustedRowsOffset);
    const auto rows = static_cast<std::uint32_t>(adjusted.size());
    std::memcpy(bytes.data(), &rows, 4);
    const auto append = [&bytes](auto part) {
      const auto raw = std::as_bytes(part);
      bytes.insert(bytes.end(), raw.begin(), raw.end());
    };
    append(std::span(adjusted));
    const std::size_t masks_at = bytes.size();
    append(std::span(words));
    chosen.adjustments = buffer(std::span<const std::byte>(bytes));
    chosen.asked = buffer(std::span<const k::SampleChoice>(choices));
    // Fewer workgroups than rows.
    const std::uint32_t workgroups = (chosen.outputs + 2) / 3;
    run(k::edit_logits(mapping, k::EditPass::kChanges), edit_push(chosen), workgroups, 2);
    k::GreedyPush greedy = chosen.greedy();
    greedy.mask_words = (chosen.vocabulary + 31) / 32;
    greedy.mask_rows = static_cast<std::uint32_t>(masks_at);
    greedy.adjustments = chosen.adjustments.address();
    greedy.choices = chosen.asked.address();
    run(k::greedy(mapping, k::GreedyPass::kAdjustedChunks), greedy, workgroups, chosen.chunks);
    run(k::greedy(mapping, k::GreedyPass::kAll), greedy, chosen.outputs);
  }
  static k::EditLogitsPush edit_push(const Chosen& chosen, std::uint64_t told = 0) {
    return {chosen.logits.address(),  chosen.adjustments.address(),
            chosen.results.address(), chosen.counts.address(),
            chosen.asked.address(),   told,
            chosen.vocabulary,        chosen.vocabulary};
  }
  std::vector<std::uint32_t> chosen_tokens(const Chosen& chosen) {
    std::vector<std::uint32_t> tokens;
    const auto words = read<std::uint32_t>(chosen.results, chosen.outputs * 2);
    for (std::uint32_t i = 0; i < chosen.outputs; ++i)
      tokens.push_back(words[2 * i]);
    return tokens;
  }

  // The results of all cases, which are outputs of one step.
  std::vector<std::uint32_t> draw(const k::Mapping& mapping, const std::vector<Case>& cases) {
    const auto vocabulary = static_cast<std::uint32_t>(cases[0].row.size());
    std::vector<float> rows;
    std::vector<k::SampleChoice> choices;
    for (const Case& one : cases) {
      rows.insert(rows.end(), one.row.begin(), one.row.end());
      k::SampleChoice choice{};
      const auto& s = one.sampling;
      choice.mode = s.temperature == 0 ? 0 : s.top_p < 1 || s.min_p > 0 ? 2 : 1;
      choice.top_k = s.top_k < vocabulary ? s.top_k : 0;
      choice.scale = std::min(1.0F / s.temperature, FLT_MAX);
      choice.least = s.min_p > 0 ? std::log(s.min_p) : -FLT_MAX;
      choice.top_p = s.top_p < 1 ? static_cast<std::uint32_t>(
                                       std::min(static_cast<double>(s.top_p) * 0x1p32, 0x1p32 - 2))
                                 : 0xFFFFFFFFU;
      const auto bits = static_cast<std::uint64_t>(engine::uniform_draw(s.seed, one.n) * 0x1p53);
      choice.draw = static_cast<std::uint32_t>(bits >> 21);
      choice.draw_low = static_cast<std::uint32_t>(bits & ((1U << 21) - 1));
      choices.push_back(choice);
    }
    Chosen chosen = choose_greedily(mapping, rows, choices);
    adjust(mapping, chosen, cases, false);
    draw(mapping, chosen);
    return chosen_tokens(chosen);
  }

  // Log-probabilities on the device of the token it chose, by greedy choice or by draw, and of the best.
  struct Told {
    std::uint32_t token = 0;
    k::LogprobRow row{};
    float logprob(float logit) const {
      return static_cast<float>(logit -
                                (std::log(static_cast<double>(row.sum) * 0x1p-40) + row.best));
    }
  };
  std::vector<Told> tell(const k::Mapping& mapping, const std::vector<std::vector<float>>& rows,
                         const std::vector<std::int32_t>& wanted, bool draws) {
    const auto outputs = static_cast<std::uint32_t>(rows.size());
    std::vector<float> all;
    std::vector<k::SampleChoice> choices;
    for (std::uint32_t i = 0; i < outputs; ++i) {
      all.insert(all.end(), rows[i].begin(), rows[i].end());
      k::SampleChoice choice{};
      choice.mode = draws ? 1 : 0;
      choice.scale = 1;
      choice.least = -FLT_MAX;
      choice.top_p = 0xFFFFFFFFU;
      choice.draw = i * 0x9E3779B9U;
      choice.logprobs = static_cast<std::uint32_t>(wanted[i] + 1);
      choices.push_back(choice);
    }
    const Chosen chosen = choose_greedily(mapping, all, choices);
    const gpu::Buffer told = empty(outputs * sizeof(k::LogprobRow));
    const k::SamplePush push = chosen.push(told.address());
    if (draws) draw(mapping, chosen, told.address());
    run(k::logprobs(mapping, k::LogprobPass::kSums), push, (outputs + 2) / 3, chosen.chunks);
    run(k::logprobs(mapping, k::LogprobPass::kTokens), push, outputs);
    const std::vector<std::uint32_t> tokens = chosen_tokens(chosen);
    const auto told_rows = read<k::LogprobRow>(told, outputs);
    std::vector<Told> made;
    for (std::uint32_t i = 0; i < outputs; ++i)
      made.push_back({tokens[i], told_rows[i]});
    return made;
  }

  struct Count {
    std::size_t draws = 0, parted = 0;
  };
  void compare(const k::Mapping& mapping, const std::vector<Case>& cases, Count& count) {
    const auto drawn = draw(mapping, cases);
    engine::Sampler sampler(static_cast<std::uint32_t>(cases[0].row.size()));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Case& one = cases[i];
      const auto& s = one.sampling;
      const auto expected = sampler.sample(one.row, s, one.n, one.adjustment());
      ASSERT_TRUE(expected.ok());
      ++count.draws;
      if (drawn[i] == *expected) continue;
      ++count.parted;
      const FewTokens few = without_excluded(one);
      const double u = engine::uniform_draw(s.seed, one.n);
      std::set<std::uint32_t> near;
      for (const double du : {-kNear, 0.0, kNear}) {
        for (const double dp : {-kNear, 0.0, kNear})
          near.insert(few.ids[by_definition(few.one, one.row.size(),
                                            std::clamp(u + du, 0.0, 1 - 1e-12), s.top_p + dp)]);
      }
      EXPECT_TRUE(near.contains(drawn[i]))
          << "case " << i << ": token " << drawn[i] << ", the CPU's " << *expected
          << "; vocabulary " << one.row.size() << " temperature " << s.temperature << " top-k "
          << s.top_k << " top-p " << s.top_p << " min-p " << s.min_p << " u " << u;
    }
  }
};

std::vector<float> some_row(std::mt19937& random, std::uint32_t vocabulary, int kind) {
  std::normal_distribution<float> normal(0, kind == 0 ? 3.0F : kind == 1 ? 0.01F : 8.0F);
  std::vector<float> row(vocabulary);
  for (float& logit : row) {
    logit = normal(random);
    if (kind == 3) logit = std::round(logit / 4);  // ties by the thousand
  }
  return row;
}

Case some_case(std::mt19937& random, std::uint32_t vocabulary, std::uint64_t n) {
  Case one;
  one.row = some_row(random, vocabulary, static_cast<int>(random() % 4));
  one.n = n;
  const auto pick = [&](std::initializer_list<float> values) {
    return values.begin()[random() % values.size()];
  };
  one.sampling.temperature = pick({0.1F, 0.7F, 1.0F, 1.5F, 5.0F});
  one.sampling.top_k = static_cast<std::uint32_t>(pick({0, 0, 1, 2, 40, 256}));
  one.sampling.top_p = pick({1.0F, 1.0F, 0.95F, 0.5F, 0.01F, 0.999F});
  one.sampling.min_p = pick({0.0F, 0.0F, 0.05F, 0.5F, 1.0F});
  one.sampling.seed = random();
  return one;
}

TEST_F(SampleTest, DrawsTheCpusTokens) {
  std::mt19937 random(11);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    Count count;
    for (const std::uint32_t vocabulary : {31U, 300U, 2048U, 5003U, 32000U}) {
      for (int round = 0; round < (vocabulary > 10000 ? 2 : 8); ++round) {
        std::vector<Case> cases;
        for (std::uint64_t i = 0; i < 24; ++i)
          cases.push_back(some_case(random, vocabulary, i));
        compare(each.mapping, cases, count);
      }
    }
    std::printf("%s: %zu draws, %zu parted within %.0e of a threshold\n", each.name, count.draws,
                count.parted, kNear);
    RecordProperty("parted", static_cast<int>(count.parted));
    EXPECT_GT(count.draws, 700U);
    EXPECT_LE(count.parted, count.draws / 100);
  }
}

// Of large vocabularies and at high temperatures, many tokens lie where top-p or top-k ends.
TEST_F(SampleTest, DrawsFromThousandsOfLikelyTokensAreTheCpus) {
  std::mt19937 random(17);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    Count count;
    for (const std::uint32_t vocabulary : {152'064U, 262'208U}) {
      std::vector<Case> cases;
      for (std::uint64_t i = 0; i < 6; ++i) {
        Case one;
        one.row = some_row(random, vocabulary, i % 2 == 0 ? 0 : 3);
        one.n = i;
        one.sampling.temperature = i % 2 == 0 ? 4 : 1;
        one.sampling.top_p = i < 4 ? 0.9F : 1.0F;
        one.sampling.top_k = i < 4 ? 0 : 200;
        one.sampling.seed = random();
        cases.push_back(std::move(one));
      }
      compare(each.mapping, cases, count);
    }
    EXPECT_LE(count.parted, 1U);
  }
}

// Masks that allow a few tokens, most of them, or one that is far from the best; rows without a mask are among them.
TEST_F(SampleTest, DrawsUnderMasksAreTheCpus) {
  std::mt19937 random(12);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    Count count;
    for (const std::uint32_t vocabulary : {31U, 300U, 5003U, 32000U}) {
      std::vector<Case> cases;
      for (std::uint64_t i = 0; i < 48; ++i) {
        Case one = some_case(random, vocabulary, i);
        if (i % 8 == 7) one.sampling.temperature = 0;
        const std::uint32_t rare = i % 3 == 0 ? 2 : i % 3 == 1 ? 50 : 1000;
        std::uint32_t allowed = 0;
        one.mask.assign((vocabulary + 31) / 32, 0);
        for (std::uint32_t id = 0; id < vocabulary; ++id) {
          if (random() % rare != 0 && !(id + 1 == vocabulary && allowed == 0)) continue;
          one.mask[id / 32] |= 1U << (id % 32);
          ++allowed;
        }
        if (i % 5 == 4) one.mask.clear();
        cases.push_back(std::move(one));
      }
      compare(each.mapping, cases, count);
    }
    std::printf("%s: %zu draws under masks, %zu parted within %.0e of a threshold\n", each.name,
                count.draws, count.parted, kNear);
    EXPECT_LE(count.parted, count.draws / 100);
  }
}

// A number that is not finite shows in the log-probability although a mask excludes its token and an edit changes it.
// Under a mask a token
// comes whose weight is nothing beside the best one's, at any temperature.
TEST_F(SampleTest, MasksHideNoBrokenNumberAndExcludeForGood) {
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    constexpr std::uint32_t kVocabulary = 3000;
    Case one;
    one.row.assign(kVocabulary, 0.0F);
    one.row[5] = 80;
    one.mask.assign((kVocabulary + 31) / 32, 0);
    one.mask[2000 / 32] |= 1U << (2000 % 32);
    std::vector<Case> cases;
    for (const float temperature : {0.01F, 1.0F, 1e30F, FLT_MAX}) {
      for (const std::uint32_t top_k : {0U, 40U}) {
        one.sampling.temperature = temperature;
        one.sampling.top_k = top_k;
        cases.push_back(one);
      }
    }
    for (const std::uint32_t token : draw(each.mapping, cases))
      EXPECT_EQ(token, 2000U);
    one.row[7] = std::numeric_limits<float>::quiet_NaN();
    Chosen chosen = choose_greedily(each.mapping, one.row, {k::SampleChoice{}});
    one.list = {{7, 1, 1, 0}};
    adjust(each.mapping, chosen, {one}, false);
    const auto words = read<std::uint32_t>(chosen.results, 2);
    EXPECT_FALSE(std::isfinite(std::bit_cast<float>(words[1])));
  }
}

// Biases and penalties of few tokens or most of them, among the best or not, with edits ahead that replace others, with
// masks and without.
std::vector<Case> edited_cases(std::mt19937& random, std::uint32_t vocabulary) {
  std::vector<Case> cases;
  const auto number = [&](float scale) {
    return std::uniform_real_distribution<float>(-scale, scale)(random);
  };
  for (std::uint64_t i = 0; i < 40; ++i) {
    Case one = some_case(random, vocabulary, i);
    if (i % 8 == 7) one.sampling.temperature = 0;
    one.sampling.repetition_penalty = i % 3 == 0 ? 1.0F : 1.0F + number(0.7F);
    const std::uint32_t rare = i % 4 == 0 ? 1 : i % 4 == 1 ? 3 : 100;
    for (std::uint32_t id = 0; id < vocabulary; ++id) {
      if (random() % rare != 0) continue;
      one.list.push_back({id, random() % 3 == 0 ? number(20) : 0.0F,
                          random() % 2 == 0 ? number(6) : 0.0F,
                          static_cast<std::uint32_t>(random() % 2)});
    }
    std::shuffle(one.list.begin(), one.list.end(), random);
    for (std::uint32_t id = 0; i % 2 == 1 && id < 15; ++id)
      one.ahead.push_back({id * 2, 0, number(6), 1});
    if (i % 5 == 0) one.mask.assign((vocabulary + 31) / 32, 0x5A5A5A5A);
    if (i == 37) one.list.clear(), one.ahead.clear();
    cases.push_back(std::move(one));
  }
  return cases;
}

TEST_F(SampleTest, DrawsWithEditsAreTheCpus) {
  std::mt19937 random(13);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    Count count;
    for (const std::uint32_t vocabulary : {31U, 300U, 5003U, 32000U})
      compare(each.mapping, edited_cases(random, vocabulary), count);
    std::printf("%s: %zu draws with edits, %zu parted within %.0e of a threshold\n", each.name,
                count.draws, count.parted, kNear);
    EXPECT_LE(count.parted, count.draws / 100);
  }
}

// Each logit has the CPU's bits, also where numbers become very large or small. (A device may take numbers below
// 1.2e-38 for zero, so none becomes so small.)
TEST_F(SampleTest, EditedLogitsHaveTheCpusBits) {
  std::mt19937 random(14);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    constexpr std::uint32_t kVocabulary = 5003;
    std::vector<Case> cases = edited_cases(random, kVocabulary);
    cases[0].sampling.repetition_penalty = 1e-30F;
    cases[4].sampling.repetition_penalty = 1e30F;
    cases[8].list[0].subtrahend = 1e37F;
    cases[12].list[0].subtrahend = -1e37F;
    std::vector<float> rows;
    for (Case& one : cases) {
      one.mask.clear();
      rows.insert(rows.end(), one.row.begin(), one.row.end());
    }
    Chosen chosen = choose_greedily(each.mapping, rows, std::vector<k::SampleChoice>(cases.size()));
    adjust(each.mapping, chosen, cases, false);
    const auto edited = read<std::uint32_t>(chosen.logits, rows.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::vector<float> expected = edited_row(cases[i]);
      for (std::uint32_t id = 0; id < kVocabulary; ++id)
        ASSERT_EQ(edited[i * kVocabulary + id], std::bit_cast<std::uint32_t>(expected[id]))
            << "case " << i << " token " << id;
    }
  }
}

// The log-probabilities of adjusted outputs are those of the row as it was.
TEST_F(SampleTest, LogprobabilitiesOfEditedRowsAreThoseOfTheRawOnes) {
  std::mt19937 random(15);
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    for (const std::uint32_t vocabulary : {31U, 5003U}) {
      const std::vector<Case> cases = edited_cases(random, vocabulary);
      std::vector<float> rows;
      std::vector<k::SampleChoice> choices;
      for (const Case& one : cases) {
        rows.insert(rows.end(), one.row.begin(), one.row.end());
        k::SampleChoice choice{};
        choice.mode = one.sampling.temperature == 0 ? 0 : 1;
        choice.scale = 1;
        choice.least = -FLT_MAX;
        choice.top_p = 0xFFFFFFFFU;
        choice.draw = static_cast<std::uint32_t>(random());
        choice.logprobs = 4;
        choices.push_back(choice);
      }
      Chosen chosen = choose_greedily(each.mapping, rows, choices);
      const gpu::Buffer told = empty(chosen.outputs * sizeof(k::LogprobRow));
      const k::SamplePush push = chosen.push(told.address());
      run(k::logprobs(each.mapping, k::LogprobPass::kSums), push, chosen.outputs, chosen.chunks);
      run(k::logprobs(each.mapping, k::LogprobPass::kTokens), push, chosen.outputs);
      adjust(each.mapping, chosen, cases, true);
      draw(each.mapping, chosen, told.address());
      run(k::edit_logits(each.mapping, k::EditPass::kTells), edit_push(chosen, told.address()),
          chosen.outputs);
      const auto tokens = chosen_tokens(chosen);
      const auto told_rows = read<k::LogprobRow>(told, chosen.outputs);
      engine::Sampler sampler(vocabulary);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const auto want = sampler.logprobs(cases[i].row, tokens[i], 3);
        EXPECT_EQ(told_rows[i].chosen, cases[i].row[tokens[i]]) << vocabulary << " case " << i;
        ASSERT_EQ(told_rows[i].count, 3U);
        for (std::uint32_t rank = 0; rank < 3; ++rank)
          EXPECT_EQ(told_rows[i].tokens[rank].id, want.best[rank].token);
      }
    }
  }
}

TEST_F(SampleTest, OneRowsDrawsHaveItsDistribution) {
  std::mt19937 random(5);
  Case one;
  one.row = some_row(random, 300, 0);
  one.sampling.temperature = 1.2F;
  one.sampling.seed = 99;
  std::vector<Case> cases;
  for (std::uint64_t n = 0; n < 400; ++n) {
    one.n = n;
    cases.push_back(one);
  }
  Count count;
  compare(test_mappings(device())[0].mapping, cases, count);
  EXPECT_EQ(count.parted, 0U);
}

TEST_F(SampleTest, LogprobabilitiesAreTheCpus) {
  std::mt19937 random(21);
  double worst = 0;
  for (const NamedMapping& each : test_mappings(device())) {
    SCOPED_TRACE(each.name);
    // Fewer chunks than tokens that are asked for, and more; rows with ties by the thousand.
    for (const std::uint32_t vocabulary : {7U, 31U, 5003U, 60000U}) {
      for (const bool draws : {false, true}) {
        std::vector<std::vector<float>> rows;
        std::vector<std::int32_t> wanted;
        for (int i = 0; i < 8; ++i) {
          rows.push_back(some_row(random, vocabulary, i % 4));
          wanted.push_back(i == 0 ? -1 : i == 1 ? 0 : i == 2 ? 1 : i == 3 ? 5 : 20);
        }
        const auto together = tell(each.mapping, rows, wanted, draws);
        engine::Sampler sampler(vocabulary);
        for (std::size_t i = 1; i < rows.size(); ++i) {
          const Told& told = together[i];
          const auto want =
              sampler.logprobs(rows[i], told.token, static_cast<std::uint32_t>(wanted[i]));
          ASSERT_EQ(told.row.count, want.best.size()) << vocabulary << " row " << i;
          const auto near = [&](float logit, float logprob) {
            // A float's last bit is 1e-6 at 16.
            const double difference = std::abs(told.logprob(logit) - logprob);
            worst = std::max(worst, difference);
            EXPECT_LE(difference, 1e-5) << vocabulary << " row " << i;
          };
          near(told.row.chosen, want.chosen);
          EXPECT_EQ(told.row.chosen, rows[i][told.token]);
          for (std::size_t rank = 0; rank < want.best.size(); ++rank) {
            ASSERT_EQ(told.row.tokens[rank].id, want.best[rank].token)
                << vocabulary << " row " << i << " rank " << rank;
            near(told.row.tokens[rank].logit, want.best[rank].value);
          }
        }
        // Alone the same bits.
        const auto alone = tell(each.mapping, {rows[5]}, {wanted[5]}, false);
        EXPECT_EQ(alone[0].row.sum, together[5].row.sum);
        for (std::uint32_t rank = 0; rank < alone[0].row.count; ++rank) {
          EXPECT_EQ(alone[0].row.tokens[rank].id, together[5].row.tokens[rank].id);
          EXPECT_EQ(alone[0].row.tokens[rank].logit, together[5].row.tokens[rank].logit);
        }
      }
    }
  }
  std::printf("log-probabilities within %.1e of the CPU's\n", worst);
}

TEST_F(SampleTest, TopKOfOneIsTheBestToken) {
  std::mt19937 random(6);
  std::vector<Case> cases;
  for (std::uint64_t i = 0; i < 4; ++i) {
    cases.push_back(some_case(random, 300, i));
    cases.back().sampling.top_k = 1;
  }
  const auto drawn = draw(test_mappings(device())[0].mapping, cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& row = cases[i].row;
    EXPECT_EQ(drawn[i], std::max_element(row.begin(), row.end()) - row.begin());
  }
}

}  // namespace
}  // namespace bulkhead::forward
