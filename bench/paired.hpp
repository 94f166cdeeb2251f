// Comparing two things on a machine that also does other things. Short turns are taken in pairs,
// AB BA AB BA: what drifts slowly meets both alike. Of the pairs' ratios the median counts, which a
// few disturbed turns do not move, with an interval that assumes nothing of how they are distributed.
// One turn is set against one: a mean of several would be disturbed more often than one, and B look
// faster than it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bulkhead::bench {

double median(std::vector<double> values);
// The value below which `part` of them lie; 0 of none.
double quantile(std::vector<double> values, double part);

// The median, and the narrowest pair of the values themselves between which the median of what they
// are samples of lies with 95 % confidence (by the binomial distribution). Of fewer than six there
// is none: then it is the least and the most, and `confident` is false.
struct MedianInterval {
  double median = 0, low = 0, high = 0;
  bool confident = false;
};
MedianInterval median_interval(std::vector<double> values);

// Whether it is "within" `limit`, "beyond" it, or "open": where the interval contains the limit.
const char* verdict(const MedianInterval& interval, double limit);

// CPU time of the whole machine that was not idle, and what the hypervisor gave to others meanwhile;
// 0 where /proc/stat can't be read. In ticks of 10 ms.
std::uint64_t busy_cpu_ns();

}  // namespace bulkhead::bench
