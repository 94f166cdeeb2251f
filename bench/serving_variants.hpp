// The ways of decoding the same requests that bench-serving-overhead compares: by the engine alone in this process,
// by a worker through its channel, and by a daemon over HTTP. All start with the same prompts and must give the same
// tokens; they differ only in what lies between a token and its receiver.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/base/error.hpp"
#include "config/settings.hpp"

namespace bulkhead::bench {

struct DecodePlan {
  std::string model = "builtin", device = "auto";
  std::uint32_t tokens = 0, prompt = 16;
  std::vector<std::uint32_t> streams;
};

// When the tokens of one request came.
struct Trace {
  std::uint64_t begin_ns = 0;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> arrivals;  // times, and the tokens so far
  void add(std::uint64_t at_ns, std::size_t tokens) {
    if (!arrivals.empty() && arrivals.back().second >= tokens) return;
    arrivals.emplace_back(at_ns, static_cast<std::uint32_t>(tokens));
  }
};
using Traces = std::vector<Trace>;

// The result of a run.
struct Run {
  Traces traces;
  std::vector<std::vector<std::uint32_t>> tokens;
};

class Variant {
 public:
  virtual ~Variant() = default;
  // `check`: returns the tokens, too; otherwise the run is only timed.
  virtual Result<Run> run(std::uint32_t streams, bool check) = 0;
  // The processes whose CPU time is reported separately; 0 is this process. The first one decodes.
  virtual std::vector<std::pair<const char*, pid_t>> processes() const = 0;
};

class EngineVariant : public Variant {
 public:
  virtual std::uint32_t vocabulary() const = 0;
  virtual const std::string& device_name() const = 0;
  virtual const std::string& driver() const = 0;
  // After a run: how many bytes of text the first tokens of each stream have released, token by token.
  virtual const std::vector<std::vector<std::size_t>>& text_bytes() const = 0;
};

// Sets in `settings` the room that all variants need. `plan` must outlive the results.
Result<std::unique_ptr<EngineVariant>> load_engine(const DecodePlan& plan,
                                                   config::Settings& settings);
Result<std::unique_ptr<Variant>> start_worker(const DecodePlan& plan,
                                              const config::Settings& settings,
                                              std::uint32_t vocabulary);
Result<std::unique_ptr<Variant>> start_daemon(const DecodePlan& plan,
                                              const config::Settings& settings,
                                              const EngineVariant& engine);

// Pins all present threads of process `pid` (0: this one). `but_main`: except this process's main thread.
void pin_threads(pid_t pid, const cpu_set_t& cpus, bool but_main = false);

}  // namespace bulkhead::bench
