#include "tests/unit/forward/sample_harness.hpp"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <set>
#include <span>

#include "worker/engine/philox.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

std::vector<float> edited_row(const SampleCase& one) {
  std::vector<float> row = one.row;
  engine::apply(one.adjustment().edits, row);
  return row;
}

namespace {

// A case reduced to the tokens that may come, and the ids of these tokens.
struct FewTokens {
  SampleCase one;
  std::vector<std::uint32_t> ids;
};
FewTokens without_excluded(const SampleCase& one) {
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

// The sampler's definition in double, for any draw and any top-p. The row may lack tokens of the
// vocabulary.
std::uint32_t by_definition(const SampleCase& one, std::size_t vocabulary, double u, double top_p) {
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

}  // namespace

SampleTest::Chosen SampleTest::choose_greedily(const k::Mapping& mapping,
                                               const std::vector<float>& rows,
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

void SampleTest::draw(const k::Mapping& mapping, const Chosen& chosen, std::uint64_t told) {
  const k::SamplePush push = chosen.push(told);
  // Passes over chunks have fewer workgroups than outputs, so a workgroup handles several outputs.
  const std::uint32_t workgroups = (chosen.outputs + 2) / 3;
  run(k::sample(mapping, k::SamplePass::kClear), push, chosen.outputs);
  run(k::sample(mapping, k::SamplePass::kHistogram), push, workgroups, chosen.chunks);
  run(k::sample(mapping, k::SamplePass::kLast), push, chosen.outputs);
  run(k::sample(mapping, k::SamplePass::kSums), push, workgroups, chosen.chunks);
  run(k::sample(mapping, k::SamplePass::kDraw), push, chosen.outputs);
}

void SampleTest::adjust(const k::Mapping& mapping, Chosen& chosen,
                        const std::vector<SampleCase>& cases, bool keeps) {
  std::vector<k::AdjustedRow> adjusted;
  auto choices = read<k::SampleChoice>(chosen.asked, chosen.outputs);
  std::vector<std::uint32_t> words;
  std::vector<engine::LogitEdit> edits;
  std::uint32_t kept = 0;
  for (const SampleCase& one : cases) {
    edits.insert(edits.end(), one.list.begin(), one.list.end());
    edits.insert(edits.end(), one.ahead.begin(), one.ahead.end());
  }
  chosen.edits = buffer(std::span<const engine::LogitEdit>(edits));
  chosen.before = empty(std::max<std::size_t>(edits.size(), 1) * 4);
  std::uint64_t at = chosen.edits.address();
  for (std::uint32_t i = 0; i < cases.size(); ++i) {
    const SampleCase& one = cases[i];
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

k::EditLogitsPush SampleTest::edit_push(const Chosen& chosen, std::uint64_t told) {
  return {chosen.logits.address(),  chosen.adjustments.address(),
          chosen.results.address(), chosen.counts.address(),
          chosen.asked.address(),   told,
          chosen.vocabulary,        chosen.vocabulary};
}

std::vector<std::uint32_t> SampleTest::chosen_tokens(const Chosen& chosen) {
  std::vector<std::uint32_t> tokens;
  const auto words = read<std::uint32_t>(chosen.results, chosen.outputs * 2);
  for (std::uint32_t i = 0; i < chosen.outputs; ++i)
    tokens.push_back(words[2 * i]);
  return tokens;
}

std::vector<std::uint32_t> SampleTest::draw(const k::Mapping& mapping,
                                            const std::vector<SampleCase>& cases) {
  const auto vocabulary = static_cast<std::uint32_t>(cases[0].row.size());
  std::vector<float> rows;
  std::vector<k::SampleChoice> choices;
  for (const SampleCase& one : cases) {
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

std::vector<SampleTest::Told> SampleTest::tell(const k::Mapping& mapping,
                                               const std::vector<std::vector<float>>& rows,
                                               const std::vector<std::int32_t>& wanted,
                                               bool draws) {
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

void SampleTest::compare(const k::Mapping& mapping, const std::vector<SampleCase>& cases,
                         Count& count) {
  const auto drawn = draw(mapping, cases);
  engine::Sampler sampler(static_cast<std::uint32_t>(cases[0].row.size()));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const SampleCase& one = cases[i];
    const auto& s = one.sampling;
    const auto expected = sampler.sample(one.row, s, one.n, one.adjustment());
    ASSERT_TRUE(expected.ok());
    ++count.draws;
    if (drawn[i] == *expected) continue;
    ++count.parted;
    const FewTokens few = without_excluded(one);
    const double u = engine::uniform_draw(s.seed, one.n);
    std::set<std::uint32_t> near;
    for (const double du : {-kNearThreshold, 0.0, kNearThreshold}) {
      for (const double dp : {-kNearThreshold, 0.0, kNearThreshold})
        near.insert(few.ids[by_definition(few.one, one.row.size(),
                                          std::clamp(u + du, 0.0, 1 - 1e-12), s.top_p + dp)]);
    }
    EXPECT_TRUE(near.contains(drawn[i]))
        << "case " << i << ": token " << drawn[i] << ", the CPU's " << *expected << "; vocabulary "
        << one.row.size() << " temperature " << s.temperature << " top-k " << s.top_k << " top-p "
        << s.top_p << " min-p " << s.min_p << " u " << u;
  }
}

}  // namespace bulkhead::forward
