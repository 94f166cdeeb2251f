#include "ipc/sampler_advice.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace bulkhead::ipc {

void take_advice(std::span<const SamplingAdvice> advice, std::uint32_t open, Sampling& sampling) {
  struct Member {
    std::string_view name;
    float Sampling::*member;
  };
  static constexpr Member kMembers[] = {
      {"temperature", &Sampling::temperature},
      {"top_p", &Sampling::top_p},
      {"min_p", &Sampling::min_p},
      {"repetition_penalty", &Sampling::repetition_penalty},
  };
  for (const SamplingAdvice& each : advice) {
    const auto* const field = std::ranges::find(kOpenSamplers, each.name, &OpenSampler::name);
    if (field == std::end(kOpenSamplers) || (open & field->bit) == 0) continue;
    const auto* const number = std::ranges::find(kMembers, each.name, &Member::name);
    if (number != std::end(kMembers))
      sampling.*number->member = static_cast<float>(each.value);
    else
      sampling.top_k = static_cast<std::uint32_t>(each.value);
  }
}

}  // namespace bulkhead::ipc
