// Compares two things on a machine that also does other things. Short turns are taken in pairs, AB BA AB BA, so slow
// drifts affect both alike. The result is the median of the pairs' ratios, which a few disturbed turns do not change,
// with an interval that assumes no distribution. Single turns are compared: a mean of several turns would be
// disturbed more often than a single one, and B would look faster than it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bulkhead::bench {

double median(std::vector<double> values);
// Returns the value below which `part` of the values lie; 0 if there are none.
double quantile(std::vector<double> values, double part);

// The median, and the narrowest pair of values that contains the true median with 95 % confidence (by the binomial
// distribution). With fewer than six values there is no such pair: the interval is then the least and the greatest
// value, and `confident` is false.
struct MedianInterval {
  double median = 0, low = 0, high = 0;
  bool confident = false;
};
MedianInterval median_interval(std::vector<double> values);

// Returns "within" `limit`, "beyond" it, or "open" if the interval contains the limit.
const char* verdict(const MedianInterval& interval, double limit);

// Returns the CPU time of the whole machine that was not idle, and what the hypervisor gave to others meanwhile, in
// ticks of 10 ms; 0 if /proc/stat can't be read.
std::uint64_t busy_cpu_ns();

}  // namespace bulkhead::bench
