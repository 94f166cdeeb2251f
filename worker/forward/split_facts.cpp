#include "worker/forward/split_facts.hpp"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string_view>

#include "config/base/fnv1a.hpp"

namespace bulkhead::forward {
namespace {

constexpr std::string_view kWeights = "/weights-", kFile = "/file-", kKv = "/kv-";

// Makes a text such as "2 x A, B".
std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size();) {
    std::size_t end = i;
    while (end < names.size() && names[end] == names[i])
      ++end;
    if (!text.empty()) text += ", ";
    if (end - i > 1) text += std::to_string(end - i) + " x ";
    text += names[i];
    i = end;
  }
  return text;
}

bool is_mean(std::string_view name) {
  for (const std::string_view part :
       {"_rate", "_ratio", "_utilisation", "_fragmentation", "_share", "_average_"}) {
    if (name.find(part) != name.npos) return true;
  }
  return false;
}

// Says whether the figure is about all stages together.
bool is_common(std::string_view name) {
  return name == "steps" || name == "max_batch" || name == "command_buffers_begun" ||
         name == "kernel_profiles";
}

}  // namespace

engine::ExecutorLimits joined_limits(const Stages& stages) {
  engine::ExecutorLimits all = stages.back()->limits();
  all.step_us = 0;
  for (const Transformer* const stage : stages) {
    const engine::ExecutorLimits& own = stage->limits();
    all.max_columns = std::min(all.max_columns, own.max_columns);
    all.window = std::max(all.window, own.window);
    all.window_pages = std::max(all.window_pages, own.window_pages);
    all.window_first_pages = std::max(all.window_first_pages, own.window_first_pages);
    all.window_slab_pages = std::max(all.window_slab_pages, own.window_slab_pages);
    all.window_eager_pages = std::max(all.window_eager_pages, own.window_eager_pages);
    all.states = std::max(all.states, own.states);
    all.max_drafts = std::min(all.max_drafts, own.max_drafts);
    all.most_pages_summed = std::min(all.most_pages_summed, own.most_pages_summed);
    all.step_us += own.step_us;
  }
  all.max_outputs = std::min(all.max_outputs, all.max_columns);
  all.steps_in_flight = static_cast<std::uint32_t>(stages.size());
  all.hands_tokens_on = false;
  return all;
}

std::string joined_names(const Stages& stages) {
  std::vector<std::string> names;
  for (const Transformer* const stage : stages)
    names.push_back(stage->device_name());
  return list_of(names);
}

std::string joined_id(const Stages& stages, const std::vector<StageLayers>& layers) {
  std::vector<std::string> kernels;
  std::uint64_t weights = kFnv1aStart;
  bool all_known = true;
  std::string file, kv;
  for (const Transformer* const stage : stages) {
    const std::string id = stage->numerics_id();
    const std::size_t tail = id.rfind(kKv), own = std::min(id.find(kWeights), tail);
    const std::size_t behind = std::min(id.find(kFile), tail);
    kernels.push_back(id.substr(0, own));
    all_known = all_known && own < behind;
    weights = fnv1a(std::as_bytes(std::span(id).subspan(own, behind - own)), weights);
    file = id.substr(behind, tail - behind);
    kv = id.substr(tail);
  }
  std::string joined = list_of(kernels) + "/layers-0";
  for (const StageLayers& each : layers)
    joined += "-" + std::to_string(each.end);
  if (!all_known) return joined + kv;
  char name[32];
  std::snprintf(name, sizeof name, "%s%016llx", kWeights.data(),
                static_cast<unsigned long long>(weights));
  return joined + name + file + kv;
}

std::vector<FigureValue> joined_counters(const Stages& stages) {
  std::vector<FigureValue> all;
  for (const Transformer* const stage : stages) {
    for (const FigureValue& counter : stage->counters()) {
      const auto known = std::ranges::find(all, counter.name, &FigureValue::name);
      if (known == all.end())
        all.push_back(counter);
      else if (is_common(counter.name))
        known->value = std::max(known->value, counter.value);
      else
        known->value += counter.value;
    }
  }
  for (FigureValue& counter : all) {
    if (is_mean(counter.name)) counter.value /= static_cast<double>(stages.size());
  }
  return all;
}

std::vector<engine::Executor::Optimization> joined_parts(const Stages& stages) {
  std::vector<engine::Executor::Optimization> all = stages.front()->optimizations();
  for (const Transformer* const stage : stages) {
    for (const engine::Executor::Optimization& part : stage->optimizations()) {
      const auto known = std::ranges::find(all, part.name, &engine::Executor::Optimization::name);
      if (known != all.end() && known->active && !part.active) *known = part;
    }
  }
  return all;
}

void add_sum(const engine::PageSum& sum, engine::PageSum& to) {
  constexpr std::uint32_t kFactor = 0x9e3779b1U;
  for (std::size_t i = 0; i < sum.size(); ++i)
    to[i] = to[i] * kFactor + sum[i];
}

}  // namespace bulkhead::forward
