#include "worker/engine/sampler.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <string>

#include "worker/engine/philox.hpp"

namespace bulkhead::engine {
namespace {

constexpr std::size_t kBlock = 256;  // tokens whose weights are added to one sum
// For last_of_mass(): weights below e^-88 are 0.
constexpr float kDeepest = 88.0F;
constexpr std::size_t kBucketsPerUnit = 32;
constexpr std::size_t kLeastBuffer = 512;  // for select_best()

// Returns e^x for x <= 0, with a relative error under 2e-7, and 0 below -87. It has no branch and no call, so that a
// loop over it vectorises: 2^n e^r, where n is the integer nearest to x / ln 2, and Taylor's polynomial of degree 6
// gives e^r for |r| <= ln 2 / 2.
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

// The result is bounded, because 0 * infinity would not be 0.
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

void apply(const LogitEdits& edits, std::span<float> row) {
  const float repetition = edits.repetition, inverse = edits.inverse();
  const auto change = [&](const LogitEdit& edit) {
    float& logit = row[edit.token];
    float changed = logit + edit.bias;
    if (edit.repeats != 0) changed = changed * (changed > 0 ? inverse : repetition);
    changed = changed - edit.subtrahend;
    logit = std::clamp(changed, -kMostEdited, kMostEdited);
  };
  for (const LogitEdit& edit : edits.list) {
    if (std::ranges::find(edits.ahead, edit.token, &LogitEdit::token) == edits.ahead.end())
      change(edit);
  }
  std::ranges::for_each(edits.ahead, change);
}

TokenHistory::TokenHistory(const ipc::Sampling& sampling, std::span<const ipc::TokenBias> bias,
                           std::uint32_t vocabulary, std::uint32_t most_edits)
    : sampling_(sampling) {
  edits_.reserve(most_edits);
  count_.reserve(edits_.capacity());
  for (const ipc::TokenBias& each : bias) {
    const auto same = std::ranges::find(edits_, each.token, &LogitEdit::token);
    if (same != edits_.end()) {
      same->bias += each.bias;
      continue;
    }
    edits_.push_back({each.token, each.bias});
    count_.push_back(0);
  }
  if (!has_penalties(sampling)) return;
  place_.assign(vocabulary, 0);
  for (std::uint32_t i = 0; i < edits_.size(); ++i)
    place_[edits_[i].token] = i + 1;
}

std::uint32_t TokenHistory::most_edits(const ipc::Sampling& sampling,
                                       std::span<const ipc::TokenBias> bias,
                                       std::uint32_t vocabulary, std::uint32_t prompt_tokens,
                                       std::uint32_t answer_tokens) {
  std::uint64_t edits = bias.size();
  if (has_penalties(sampling)) edits += answer_tokens;
  if (sampling.repetition_penalty != 1.0F) edits += prompt_tokens;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(edits, vocabulary));
}

float TokenHistory::subtrahend(std::uint32_t count) const {
  if (count == 0) return 0;
  const float sum =
      sampling_.frequency_penalty * static_cast<float>(count) + sampling_.presence_penalty;
  return std::clamp(sum, -kMostEdited, kMostEdited);
}

LogitEdit& TokenHistory::see(TokenId token) {
  if (place_[token] == 0) {
    edits_.push_back({token});
    count_.push_back(0);
    place_[token] = static_cast<std::uint32_t>(edits_.size());
  }
  LogitEdit& edit = edits_[place_[token] - 1];
  edit.repeats = repeats();
  return edit;
}

void TokenHistory::add_prompt(std::span<const TokenId> tokens) {
  if (!penalises() || repeats() == 0) return;
  for (const TokenId token : tokens)
    see(token);
}

void TokenHistory::add_generated(TokenId token) {
  if (!penalises()) return;
  LogitEdit& edit = see(token);
  edit.subtrahend = subtrahend(++count_[place_[token] - 1]);
}

void TokenHistory::look_ahead(std::span<const TokenId> tokens,
                              std::vector<LogitEdit>& ahead) const {
  ahead.clear();
  if (!penalises()) return;
  for (const TokenId token : tokens) {
    const std::uint32_t place = place_[token];
    auto edit = std::ranges::find(ahead, token, &LogitEdit::token);
    if (edit == ahead.end())
      edit = ahead.insert(ahead.end(), place == 0 ? LogitEdit{token} : edits_[place - 1]);
    const auto more = static_cast<std::uint32_t>(std::ranges::count(tokens, token));
    edit->repeats = repeats();
    edit->subtrahend = subtrahend((place == 0 ? 0 : count_[place - 1]) + more);
  }
}

Sampler::Sampler(std::uint32_t vocabulary) {
  adjusted_.resize(vocabulary);
  allowed_.reserve(vocabulary);
  allowed_ids_.reserve(vocabulary);
  weights_.resize(vocabulary);
  block_sums_.resize((vocabulary + kBlock - 1) / kBlock);
  bucket_sums_.resize(static_cast<std::size_t>(kDeepest) * kBucketsPerUnit + 1);
  candidates_.reserve(std::max<std::size_t>(vocabulary, kLeastBuffer));
}

std::span<const float> Sampler::edited(std::span<const float> logits, const LogitEdits& edits) {
  if (edits.empty()) return logits;
  std::copy(logits.begin(), logits.end(), adjusted_.begin());
  const std::span<float> row(adjusted_.data(), logits.size());
  apply(edits, row);
  return row;
}

// At most places of an answer few tokens are allowed, and then a draw takes almost no time.
std::span<const float> Sampler::allowed(std::span<const float> logits,
                                        std::span<const std::uint32_t> mask) {
  allowed_ids_.clear();
  allowed_.clear();
  const std::size_t words = std::min(mask.size(), (logits.size() + 31) / 32);
  for (std::size_t word = 0; word < words; ++word) {
    for (std::uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const auto id =
          static_cast<TokenId>(word * 32) + static_cast<TokenId>(std::countr_zero(bits));
      if (id >= logits.size()) break;
      allowed_ids_.push_back(id);
      allowed_.push_back(logits[id]);
    }
  }
  return allowed_;
}

Result<TokenId> Sampler::sample(std::span<const float> raw, const ipc::Sampling& sampling,
                                std::uint64_t n, const Adjustment& adjustment) {
  if (raw.empty() || raw.size() > weights_.size() || !all_finite(raw)) {
    return Error(
        ErrorCode::kInternal,
        "the model's logits are not finite numbers; its weights may be damaged or overflow "
        "the cache's type (engine.kv_type: f32 has more range)");
  }
  const std::span<const float> logits = edited(raw, adjustment.edits);
  if (adjustment.mask.empty()) return choose(logits, sampling, n);
  const std::span<const float> few = allowed(logits, adjustment.mask);
  if (few.empty()) {
    return Error(ErrorCode::kInternal, kNothingGoesOn);
  }
  return allowed_ids_[choose(few, sampling, n)];
}

TokenId Sampler::choose(std::span<const float> logits, const ipc::Sampling& sampling,
                        std::uint64_t n) {
  if (sampling.temperature == 0) return first_equal(logits, largest(logits));
  const double u = uniform_draw(sampling.seed, n);
  // Whether top-k is below the vocabulary's size decides on the order of the draw, not whether a mask leaves fewer.
  const bool truncated = sampling.top_k > 0 && sampling.top_k < weights_.size();
  if (truncated) return draw_from_best(logits, sampling, u);
  return draw_from_all(logits, sampling, u);
}

// Sets weights_ = exp((logit - best) * scale) and returns their sum. Each block is summed in eight lanes, and the
// blocks are summed in order: that is fast, and gives the same result on every machine.
double Sampler::exponentials(std::span<const float> logits, float best, float scale) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = exp_of_nonpositive((logits[i] - best) * scale);
  }
  return sum_blocks(logits.size());
}

double Sampler::sum_blocks(std::size_t size) {
  double total = 0;
  for (std::size_t begin = 0, block = 0; begin < size; begin += kBlock, ++block) {
    const std::size_t count = std::min(kBlock, size - begin);
    const float* weights = weights_.data() + begin;
    float lanes[8] = {};
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane)
        lanes[lane] += weights[i + lane];
    }
    double sum = 0;
    for (const float lane : lanes)
      sum += lane;
    for (; i < count; ++i)
      sum += weights[i];
    block_sums_[block] = sum;
    total += sum;
  }
  return total;
}

TokenId Sampler::draw_from_all(std::span<const float> logits, const ipc::Sampling& sampling,
                               double u) {
  const float best = largest(logits);
  const float scale = inverse(sampling.temperature);
  double total = exponentials(logits, best, scale);
  if (sampling.top_p < 1 || sampling.min_p > 0) {
    RankedToken last{static_cast<TokenId>(logits.size()), -FLT_MAX};
    if (sampling.top_p < 1) last = last_of_mass(logits, best, scale, sampling.top_p * total);
    const float floor = sampling.min_p > 0 ? std::log(sampling.min_p) : -FLT_MAX;
    for (std::uint32_t i = 0; i < logits.size(); ++i) {
      const float logit = logits[i];
      const bool in_mass = logit > last.value || (logit == last.value && i <= last.token);
      const bool kept = in_mass && (logit - best) * scale >= floor;
      weights_[i] = kept ? weights_[i] : 0.0F;
    }
    total = sum_blocks(logits.size());
  }
  double left = u * total;
  TokenId last = first_equal(logits, best);  // the result if rounding leaves nothing at the end
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

// Returns the last of the best tokens whose weights sum to `mass`, without sorting the row. A histogram over the
// exponent finds the bucket in which the sum is reached, and only that bucket is sorted.
RankedToken Sampler::last_of_mass(std::span<const float> logits, float best, float scale,
                                  double mass) {
  // A conversion to a signed integer is one instruction.
  const auto bucket_of = [best, scale](float logit) {
    return static_cast<std::int32_t>(std::min((best - logit) * scale, kDeepest) *
                                     static_cast<float>(kBucketsPerUnit));
  };
  std::fill(bucket_sums_.begin(), bucket_sums_.end(), 0.0);
  for (std::size_t i = 0; i < logits.size(); ++i)
    bucket_sums_[bucket_of(logits[i])] += weights_[i];
  double sum = 0;
  std::int32_t bucket = 0;
  const auto last_bucket = static_cast<std::int32_t>(bucket_sums_.size()) - 1;
  while (bucket < last_bucket && sum + bucket_sums_[bucket] < mass) {
    sum += bucket_sums_[bucket++];
  }
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (bucket_of(logits[i]) == bucket) candidates_.push_back({static_cast<TokenId>(i), logits[i]});
  }
  // Because of rounding, the sum may never be reached; then all tokens are in.
  if (candidates_.empty()) return {static_cast<TokenId>(logits.size()), -FLT_MAX};
  std::sort(candidates_.begin(), candidates_.end(), better);
  for (const RankedToken& candidate : candidates_) {
    sum += weights_[candidate.token];
    if (sum >= mass) return candidate;
  }
  return candidates_.back();
}

TokenId Sampler::draw_from_best(std::span<const float> logits, const ipc::Sampling& sampling,
                                double u) {
  const float scale = inverse(sampling.temperature);
  select_best(logits, std::min<std::size_t>(sampling.top_k, logits.size()));
  const float best = candidates_.front().value;
  double whole = 0;
  for (std::size_t rank = 0; rank < candidates_.size(); ++rank) {
    weights_[rank] = exp_of_nonpositive((candidates_[rank].value - best) * scale);
    whole += weights_[rank];
  }
  std::size_t kept = candidates_.size();
  double total = whole;
  if (sampling.top_p < 1) {
    total = 0;
    for (kept = 0; kept < candidates_.size() && total < sampling.top_p * whole;) {
      total += weights_[kept++];
    }
  }
  if (sampling.min_p > 0) {
    const float floor = std::log(sampling.min_p);
    while (kept > 1 && (candidates_[kept - 1].value - best) * scale < floor) {
      total -= weights_[--kept];
    }
  }
  double left = u * total;
  for (std::size_t rank = 0; rank < kept; ++rank) {
    if (left < weights_[rank]) return candidates_[rank].token;
    left -= weights_[rank];
  }
  // If rounding left no weight at the very end, this takes the last token that has any.
  while (kept > 1 && weights_[kept - 1] == 0)
    --kept;
  return candidates_[kept - 1].token;
}

void Sampler::select_best(std::span<const float> logits, std::size_t count) {
  candidates_.clear();
  const std::size_t buffer = std::min(candidates_.capacity(), std::max(2 * count, kLeastBuffer));
  // Ids rise, so a value equal to the worst kept one has already lost the tie: `>` is enough. Each cut removes at
  // least half of the buffer, so the whole takes time linear in the row.
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
  const double log_sum = std::log(exponentials(logits, best, 1.0F)) + best;
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
