// Steady decoding must not allocate or record anything. The engine runs hundreds of steps on the
// executor, and the test counts every `new` of this thread, every device allocation and every
// recorded command buffer.
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/forward/builtin_on_device.hpp"

namespace {
thread_local std::uint64_t allocations = 0;
}

// Counts the allocations of this process's C++ code; the driver's own mallocs do not count. Not
// inlined, because the compiler would warn that memory of malloc is passed to operator delete.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace bulkhead::forward {
namespace {

class Steady : public BuiltinOnDevice {
 protected:
  void SetUp() override {
    BuiltinOnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    executor_ = load(small_options(4));
    ASSERT_NE(executor_, nullptr);
  }

  void expect_steady(bool penalties);

  double counter(const std::string& name) const {
    for (const auto& each : executor_->counters()) {
      if (each.name == name) return each.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return -1;
  }

  std::unique_ptr<engine::Executor> executor_;
};

void Steady::expect_steady(bool penalties) {
  std::uint64_t tokens = 0;
  engine::Engine engine(*executor_, language_, {}, [&](const ipc::FromWorker& message) {
    const auto* const batch = std::get_if<ipc::TokenBatch>(&message);
    if (batch == nullptr) return;
    for (const auto& sequence : batch->sequences)
      tokens += sequence.tokens.size();
  });
  for (std::uint64_t id = 1; id <= 2; ++id) {
    ipc::Submit submit;
    submit.request = RequestId{id};
    submit.prompt = std::vector<ipc::TokenId>{5, 6, 7, 8};
    submit.sampling.temperature = id == 1 ? 0 : 0.8F;  // the second is drawn on the device
    submit.sampling.top_p = 0.9F;
    if (penalties) submit.sampling.repetition_penalty = 1.05F;
    submit.max_tokens = 400;
    submit.ignore_eos = true;
    engine.submit(std::move(submit));
  }
  const std::function<void()> meanwhile = [] {};
  const auto run = [&](std::uint64_t until) {
    while (tokens < until) {
      const auto ran = engine.turn(meanwhile);
      ASSERT_TRUE(ran.ok()) << ran.error().message();
      ASSERT_TRUE(*ran);
    }
  };
  run(60);
  const double device_allocations = counter("device_allocations");
  const double begun = counter("command_buffers_begun");
  const double steps = counter("steps"), replays = counter("ring_replays");
  const std::uint64_t before = allocations;
  run(660);
  const std::uint64_t after = allocations;
  const double steady = counter("steps") - steps;
  EXPECT_GE(steady, 300);
  EXPECT_EQ(after - before, 0U) << "of the host, in " << steady << " steps";
  EXPECT_EQ(counter("device_allocations") - device_allocations, 0);
  EXPECT_LE((counter("command_buffers_begun") - begun) * 1000, steady) << "one in 1,000 steps";
  EXPECT_EQ(counter("ring_replays") - replays, (penalties ? 2 : 1) * steady)
      << "the step and its draws go together, or all that follows the step";
  EXPECT_EQ(counter("steps_in_flight"), 2);
  double ahead = 0;
  for (const ipc::Counter& each : engine.stats().counters) {
    if (each.name == "steps_ahead_total") ahead = each.value;
  }
  EXPECT_GE(ahead, steady) << "the device waited for the host";
}

TEST_F(Steady, AStepAllocatesAndRecordsNothing) {
  expect_steady(false);
}
TEST_F(Steady, PenaltiesNeitherAllocateNorRecordAnything) {
  expect_steady(true);
}

// The same device, but the host makes every draw.
class DrawsOnHost final : public engine::Executor {
 public:
  explicit DrawsOnHost(engine::Executor& device) : device_(device), limits_(device.limits()) {
    limits_.sampled_top_k = 0;
    limits_.adjusts = false;
  }
  const engine::ExecutorLimits& limits() const override { return limits_; }
  Status reserve_logits(std::uint32_t outputs) override { return device_.reserve_logits(outputs); }
  Status submit(const engine::Step& step) override { return device_.submit(step); }
  Result<std::span<const engine::ColumnOutput>> wait() override { return device_.wait(); }
  std::string device_name() const override { return device_.device_name(); }
  std::string numerics_id() const override { return device_.numerics_id(); }
  std::uint64_t weight_bytes() const override { return device_.weight_bytes(); }
  std::vector<FigureValue> counters() const override { return device_.counters(); }
  std::vector<Optimization> optimizations() const override { return device_.optimizations(); }

 private:
  engine::Executor& device_;
  engine::ExecutorLimits limits_;
};

TEST_F(Steady, DrawsOnTheDeviceGiveTheHostsTokens) {
  const auto tokens_of = [&](engine::Executor& executor) {
    std::map<RequestId, std::vector<ipc::TokenId>> tokens;
    engine::Engine engine(executor, language_, {}, [&](const ipc::FromWorker& message) {
      const auto* const batch = std::get_if<ipc::TokenBatch>(&message);
      if (batch == nullptr) return;
      for (const auto& sequence : batch->sequences) {
        auto& mine = tokens[sequence.request];
        mine.insert(mine.end(), sequence.tokens.begin(), sequence.tokens.end());
      }
    });
    for (std::uint64_t id = 1; id <= 24; ++id) {
      ipc::Submit submit;
      submit.request = RequestId{id};
      submit.prompt = std::vector<ipc::TokenId>{5, 6, 7, static_cast<ipc::TokenId>(id)};
      submit.sampling.temperature = id % 6 == 0 ? 0 : 0.6F + 0.2F * static_cast<float>(id);
      submit.sampling.top_k = id % 2 == 0 ? 40 : 0;
      submit.sampling.top_p = id < 4 ? 0.9F : 1.0F;
      submit.sampling.min_p = id == 5 ? 0.05F : 0.0F;
      submit.sampling.seed = 1000 + id;
      if (id > 6 && id % 2 == 1)
        submit.constraint = {ipc::ConstraintKind::kRegex, "([a-z]{2,5} ){20}", "regex"};
      if (id > 6 && id % 2 == 0)
        submit.constraint = {ipc::ConstraintKind::kJsonObject, "", "response_format"};
      if (id > 12) {
        submit.sampling.repetition_penalty = id % 3 == 0 ? 1.1F : 1;
        submit.sampling.presence_penalty = id % 3 == 1 ? 1.5F : 0;
        submit.sampling.frequency_penalty = id % 4 == 0 ? 0.2F : 0;
        if (id % 3 == 2) submit.logit_bias = {{7, 3}, {300, -2}};
        submit.logprobs = id % 2 == 0 ? 2 : -1;
      }
      submit.max_tokens = 40;
      submit.ignore_eos = true;
      engine.submit(std::move(submit));
    }
    const std::function<void()> meanwhile = [] {};
    for (bool more = true; more;) {
      const auto ran = engine.turn(meanwhile);
      EXPECT_TRUE(ran.ok()) << ran.error().message();
      more = ran.ok() && *ran;
    }
    return tokens;
  };
  const auto on_device = tokens_of(*executor_);
  DrawsOnHost host(*executor_);
  const auto on_host = tokens_of(host);
  EXPECT_EQ(on_device.size(), 24U);
  EXPECT_EQ(on_device, on_host);
}

}  // namespace
}  // namespace bulkhead::forward
