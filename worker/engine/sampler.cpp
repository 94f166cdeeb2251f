#include "worker/engine/sampler.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <string>

#include "worker/engine/philox.hpp"

namespace bulkhead::engine {
namespace {

constexpr std::size_t kBlock = 256;  // tokens whose weights are summed together
constexpr std::size_t kFirstBest =
    64;  // candidates tried first for top-p; then four times as many, and so on
constexpr std::size_t kLeastBuffer = 512;  // of select_best()

// e^x for x <= 0, relative error under 2e-7; 0 below -87. No branch and no call, so that a loop
// over it vectorises: 2^n e^r with n the nearest integer to x / ln 2 and |r| <= ln 2 / 2 by
// Taylor's polynomial of degree 6.
inline float exp_of_nonpositive(float x) {
  const float clamped = x < -87.0F ? -87.0F : x;
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = clamped * 1.44269504F + kRounder;
  const float n = shifted - kRounder;
  const float r = (clamped - n * 0.693145752F) - n * 1.42860677e-6F;
  const float polynomial =
      1.0F +
      r * (1.0F +
           r * (0.5F + r * (1.66666667e-1F +
                            r * (4.16666667e-2F + r * (8.33333333e-3F + r * 1.38888889e-3F)))));
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) + 127U) << 23;
  const float value = polynomial * std::bit_cast<float>(exponent);
  return x < -87.0F ? 0.0F : value;
}

bool all_finite(std::span<const float> row) {
  std::uint32_t bad = 0;
  for (const float value : row) {
    bad |= (std::bit_cast<std::uint32_t>(value) & 0x7F800000U) == 0x7F800000U ? 1U : 0U;
  }
  return bad == 0;
}

float largest(std::span<const float> row) {
  float lanes[8];
  std::fill(std::begin(lanes), std::end(lanes), -FLT_MAX);
  std::size_t i = 0;
  for (; i + 8 <= row.size(); i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      lanes[lane] = row[i + lane] > lanes[lane] ? row[i + lane] : lanes[lane];
    }
  }
  float best = *std::max_element(std::begin(lanes), std::end(lanes));
  for (; i < row.size(); ++i)
    best = std::max(best, row[i]);
  return best;
}

TokenId first_equal(std::span<const float> row, float value) {
  return static_cast<TokenId>(std::find(row.begin(), row.end(), value) - row.begin());
}

bool better(const RankedToken& a, const RankedToken& b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

// Bounded, because 0 * infinity would not be 0.
float inverse(float temperature) {
  return std::min(1.0F / temperature, FLT_MAX);
}

Error bad_parameter(const char* name, const std::string& rule) {
  return Error(ErrorCode::kInvalidArgument, std::string(name) + " " + rule);
}

}  // namespace

Status check_sampling(const ipc::Sampling& s) {
  if (!std::isfinite(s.temperature) || s.temperature < 0) {
    return bad_parameter("temperature", "must be 0 or more");
  }
  if (!(s.top_p > 0 && s.top_p <= 1))
    return bad_parameter("top_p", "must be above 0 and at most 1");
  if (!(s.min_p >= 0 && s.min_p <= 1)) return bad_parameter("min_p", "must be from 0 to 1");
  if (!std::isfinite(s.repetition_penalty) || s.repetition_penalty <= 0) {
    return bad_parameter("repetition_penalty", "must be above 0");
  }
  if (!std::isfinite(s.frequency_penalty)) {
    return bad_parameter("frequency_penalty", "must be a number");
  }
  if (!std::isfinite(s.presence_penalty)) {
    return bad_parameter("presence_penalty", "must be a number");
  }
  return {};
}

TokenHistory::TokenHistory(const ipc::Sampling& sampling, std::uint32_t vocabulary,
                           std::uint32_t most_tokens) {
  if (!has_penalties(sampling)) return;
  count_.assign(vocabulary, 0);
  distinct_.reserve(std::min(vocabulary, most_tokens));
}

void TokenHistory::see(TokenId token) {
  if ((count_[token] & kSeen) != 0) return;
  count_[token] |= kSeen;
  distinct_.push_back(token);
}

void TokenHistory::add_prompt(std::span<const TokenId> tokens) {
  if (!active()) return;
  for (const TokenId token : tokens)
    see(token);
}

void TokenHistory::add_generated(TokenId token) {
  if (!active()) return;
  see(token);
  ++count_[token];
}

Sampler::Sampler(std::uint32_t vocabulary) {
  penalised_.resize(vocabulary);
  weights_.resize(vocabulary);
  block_sums_.resize((vocabulary + kBlock - 1) / kBlock);
  candidates_.reserve(std::max<std::size_t>(vocabulary, kLeastBuffer));
}

std::span<const float> Sampler::penalised(std::span<const float> logits, const ipc::Sampling& s,
                                          const TokenHistory& history) {
  if (!history.active()) return logits;
  std::copy(logits.begin(), logits.end(), penalised_.begin());
  for (const TokenId token : history.distinct()) {
    float& logit = penalised_[token];
    logit = logit > 0 ? logit / s.repetition_penalty : logit * s.repetition_penalty;
    const std::uint32_t count = history.generated(token);
    if (count > 0) {
      logit -= s.frequency_penalty * static_cast<float>(count) + s.presence_penalty;
    }
    logit = std::clamp(logit, -FLT_MAX, FLT_MAX);
  }
  return {penalised_.data(), logits.size()};
}

Result<TokenId> Sampler::sample(std::span<const float> raw, const ipc::Sampling& sampling,
                                const TokenHistory& history, std::uint64_t n) {
  if (raw.empty() || raw.size() > weights_.size() || !all_finite(raw)) {
    return Error(
        ErrorCode::kInternal,
        "the model's logits are not finite numbers; its weights may be damaged or overflow "
        "the cache's type (engine.kv_type: f32 has more range)");
  }
  const std::span<const float> logits = penalised(raw, sampling, history);
  if (sampling.temperature == 0) return first_equal(logits, largest(logits));
  const double u = uniform_draw(sampling.seed, n);
  const bool truncated = sampling.top_k > 0 && sampling.top_k < logits.size();
  if (truncated || sampling.top_p < 1) return draw_from_best(logits, sampling, u);
  return draw_from_all(logits, sampling, u);
}

// weights_ = exp((logit - best) * scale), 0 where the exponent is under `floor`; returns their sum.
// Each block is summed in eight lanes and the blocks in order: fast, and the same on every machine.
double Sampler::exponentials(std::span<const float> logits, float best, float scale, float floor) {
  double total = 0;
  for (std::size_t begin = 0, block = 0; begin < logits.size(); begin += kBlock, ++block) {
    const std::size_t count = std::min(kBlock, logits.size() - begin);
    const float* in = logits.data() + begin;
    float* out = weights_.data() + begin;
    for (std::size_t i = 0; i < count; ++i) {
      const float exponent = (in[i] - best) * scale;
      const float weight = exp_of_nonpositive(exponent);
      out[i] = exponent < floor ? 0.0F : weight;
    }
    float lanes[8] = {};
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane)
        lanes[lane] += out[i + lane];
    }
    double sum = 0;
    for (const float lane : lanes)
      sum += lane;
    for (; i < count; ++i)
      sum += out[i];
    block_sums_[block] = sum;
    total += sum;
  }
  return total;
}

TokenId Sampler::draw_from_all(std::span<const float> logits, const ipc::Sampling& sampling,
                               double u) {
  const float best = largest(logits);
  const float floor = sampling.min_p > 0 ? std::log(sampling.min_p) : -FLT_MAX;
  const double total = exponentials(logits, best, inverse(sampling.temperature), floor);
  double left = u * total;
  TokenId last = first_equal(logits, best);  // what rounding at the very end falls back to
  for (std::size_t begin = 0, block = 0; begin < logits.size(); begin += kBlock, ++block) {
    if (left >= block_sums_[block]) {
      left -= block_sums_[block];
      continue;
    }
    const std::size_t end = std::min(begin + kBlock, logits.size());
    for (std::size_t i = begin; i < end; ++i) {
      if (weights_[i] == 0) continue;
      last = static_cast<TokenId>(i);
      if (left < weights_[i]) return last;
      left -= weights_[i];
    }
    return last;
  }
  return last;
}

TokenId Sampler::draw_from_best(std::span<const float> logits, const ipc::Sampling& sampling,
                                double u) {
  const std::size_t most =
      sampling.top_k > 0 ? std::min<std::size_t>(sampling.top_k, logits.size()) : logits.size();
  const float scale = inverse(sampling.temperature);
  const bool by_mass = sampling.top_p < 1;
  // What top-p is a fraction of: the whole row without top-k, else the k best.
  double whole = 0;
  if (by_mass && sampling.top_k == 0) {
    whole = exponentials(logits, largest(logits), scale, -FLT_MAX);
  }
  std::size_t count = by_mass && sampling.top_k == 0 ? std::min(kFirstBest, most) : most;
  for (;;) {
    select_best(logits, count);
    const float best = candidates_.front().value;
    double mass = 0;
    for (std::size_t i = 0; i < count; ++i) {
      // weights_ holds the candidates' weights from here on, by rank.
      weights_[i] = exp_of_nonpositive((candidates_[i].value - best) * scale);
      mass += weights_[i];
    }
    if (by_mass && sampling.top_k == 0 && mass < sampling.top_p * whole && count < most) {
      count = std::min(count * 4, most);
      continue;
    }
    if (sampling.top_k > 0) whole = mass;
    break;
  }
  std::size_t kept = count;
  if (by_mass) {
    double mass = 0;
    for (kept = 0; kept < count;) {
      mass += weights_[kept++];
      if (mass >= static_cast<double>(sampling.top_p) * whole) break;
    }
  }
  if (sampling.min_p > 0) {
    const float floor = std::log(sampling.min_p);
    while (kept > 1 && (candidates_[kept - 1].value - candidates_.front().value) * scale < floor) {
      --kept;
    }
  }
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i)
    total += weights_[i];
  double left = u * total;
  for (std::size_t i = 0; i < kept; ++i) {
    if (left < weights_[i]) return candidates_[i].token;
    left -= weights_[i];
  }
  // Rounding at the very end: the last that has any weight.
  while (kept > 1 && weights_[kept - 1] == 0)
    --kept;
  return candidates_[kept - 1].token;
}

void Sampler::select_best(std::span<const float> logits, std::size_t count) {
  candidates_.clear();
  const std::size_t buffer = std::min(candidates_.capacity(), std::max(2 * count, kLeastBuffer));
  // Ids rise, so a value equal to the worst one kept has lost the tie already: `>` is enough. Each
  // cut throws away half of the buffer or more, so the whole is linear in the row.
  bool full = false;
  float threshold = 0;
  const auto cut = [&] {
    std::nth_element(candidates_.begin(),
                     candidates_.begin() + static_cast<std::ptrdiff_t>(count - 1),
                     candidates_.end(), better);
    candidates_.resize(count);
    threshold = candidates_[count - 1].value;
    full = true;
  };
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (full && !(logits[id] > threshold)) continue;
    candidates_.push_back({static_cast<TokenId>(id), logits[id]});
    if (candidates_.size() == buffer && buffer > count) cut();
  }
  if (candidates_.size() > count) cut();
  std::sort(candidates_.begin(), candidates_.end(), better);
}

Sampler::Logprobs Sampler::logprobs(std::span<const float> logits, TokenId token,
                                    std::uint32_t count) {
  const float best = largest(logits);
  const double log_sum = std::log(exponentials(logits, best, 1.0F, -FLT_MAX)) + best;
  candidates_.clear();
  if (count > 0) {
    select_best(logits, std::min<std::size_t>(count, logits.size()));
    for (RankedToken& ranked : candidates_) {
      ranked.value = static_cast<float>(ranked.value - log_sum);
    }
  }
  return {static_cast<float>(logits[token] - log_sum), candidates_};
}

}  // namespace bulkhead::engine
