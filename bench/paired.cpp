#include "bench/paired.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace bulkhead::bench {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

MedianInterval median_interval(std::vector<double> values) {
  MedianInterval result;
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  // The true median is below the value at place k (from 0) if at most k of n samples are below it. That has the
  // probability of at most k heads in n tosses. Each end may be wrong with 2.5 %.
  double tosses = 1;  // 2^-n * (n choose i), summed up to i = k
  for (std::size_t i = 0; i < n; ++i)
    tosses /= 2;
  double sum = tosses;
  std::size_t place = 0;
  while (place + 1 < n - place - 1) {
    tosses *= static_cast<double>(n - place) / static_cast<double>(place + 1);
    if (sum + tosses > 0.025) break;
    sum += tosses;
    ++place;
  }
  result.median = median(values);
  result.confident = n >= 6;
  result.low = values[place];
  result.high = values[n - 1 - place];
  return result;
}

const char* verdict(const MedianInterval& interval, double limit) {
  if (!interval.confident) return "open";
  return interval.high <= limit ? "within" : interval.low > limit ? "beyond" : "open";
}

std::uint64_t busy_cpu_ns() {
  std::ifstream file("/proc/stat");
  std::string line, cpu;
  std::getline(file, line);
  std::istringstream words(line);
  std::uint64_t user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  if (!(words >> cpu >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal)) return 0;
  const auto ticks_per_s = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  return (user + nice + system + irq + soft + steal) * (1'000'000'000 / ticks_per_s);
}

}  // namespace bulkhead::bench
