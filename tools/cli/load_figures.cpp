#include "tools/cli/load_figures.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include <nlohmann/json.hpp>

#include "tools/cli/table.hpp"

namespace bulkhead::cli {

using nlohmann::json;

Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto count = static_cast<double>(values.size());
  const auto at = [&](double share) {
    const auto rank = static_cast<std::size_t>(std::ceil(share * count));
    return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
  };
  return {std::accumulate(values.begin(), values.end(), 0.0) / count,
          at(0.5),
          at(0.9),
          at(0.95),
          at(0.99),
          values.back()};
}

LoadFigures figures_of(const std::vector<LoadRecord>& records) {
  LoadFigures figures;
  std::vector<double> first, between, total;
  double began = 0, ended = 0;
  for (const LoadRecord& record : records) {
    began = figures.requests == 0 ? record.began : std::min(began, record.began);
    ended = std::max(ended, record.ended);
    ++figures.requests;
    if (!record.error.empty()) {
      if (figures.failed++ == 0) figures.first_error = record.error;
      continue;
    }
    const std::uint64_t tokens = record.counted_tokens();
    figures.tokens += tokens;
    total.push_back((record.ended - record.began) * 1000);
    if (record.texts.empty()) continue;
    first.push_back((record.texts.front() - record.began) * 1000);
    // The server may put several tokens into one event, so there may be fewer gaps between events
    // than between tokens.
    const double per_event =
        std::max(1.0, static_cast<double>(tokens) / static_cast<double>(record.texts.size()));
    for (std::size_t i = 1; i < record.texts.size(); ++i)
      between.push_back((record.texts[i] - record.texts[i - 1]) * 1000 / per_event);
  }
  figures.seconds = ended - began;
  if (figures.seconds > 0) {
    figures.requests_per_second =
        static_cast<double>(figures.requests - figures.failed) / figures.seconds;
    figures.tokens_per_second = static_cast<double>(figures.tokens) / figures.seconds;
  }
  figures.first_token_ms = percentiles(std::move(first));
  figures.inter_token_ms = percentiles(std::move(between));
  figures.total_ms = percentiles(std::move(total));
  return figures;
}

namespace {

json to_json(const Percentiles& of) {
  return {{"mean", of.mean}, {"p50", of.p50}, {"p90", of.p90},
          {"p95", of.p95},   {"p99", of.p99}, {"max", of.most}};
}

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, value < 100 ? "%.2f" : "%.0f", value);
  return text;
}

}  // namespace

json to_json(const LoadFigures& figures) {
  json out = {{"requests", figures.requests},
              {"failed", figures.failed},
              {"seconds", figures.seconds},
              {"tokens", figures.tokens},
              {"requests_per_second", figures.requests_per_second},
              {"tokens_per_second", figures.tokens_per_second},
              {"first_token_ms", to_json(figures.first_token_ms)},
              {"inter_token_ms", to_json(figures.inter_token_ms)},
              {"total_ms", to_json(figures.total_ms)}};
  if (!figures.first_error.empty()) out["first_error"] = figures.first_error;
  return out;
}

std::string to_text(const LoadFigures& figures) {
  std::string text = std::to_string(figures.requests) + " requests in " + number(figures.seconds) +
                     " s, " + std::to_string(figures.failed) + " failed; " +
                     number(figures.requests_per_second) + " requests/s, " +
                     number(figures.tokens_per_second) + " tokens/s\n";
  std::vector<std::vector<std::string>> rows = {{"MS", "MEAN", "P50", "P90", "P95", "P99", "MAX"}};
  const auto add = [&rows](const char* name, const Percentiles& of) {
    rows.push_back({name, number(of.mean), number(of.p50), number(of.p90), number(of.p95),
                    number(of.p99), number(of.most)});
  };
  add("first token", figures.first_token_ms);
  add("between tokens", figures.inter_token_ms);
  add("whole answer", figures.total_ms);
  text += table(rows);
  if (!figures.first_error.empty()) text += "first error: " + cell(figures.first_error) + "\n";
  return text;
}

}  // namespace bulkhead::cli
