// What becomes of a model on a device that fails: every allocation, submit and wait fails once, in
// loading and in steps, and a device that stands still does so in each of them. The end is always
// an error, nothing is freed under work that still runs, and nothing stays behind. Also: what
// loading tells while it waits, and that a mixed load records nothing anew.
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "gpu/fault_injection.hpp"
#include "gpu/wear_in.hpp"
#include "tests/support/gpu_fault_cases.hpp"
#include "tests/unit/model/gguf_builder.hpp"
#include "worker/forward/step_program.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/gguf.hpp"

namespace {
bool left_a_hung_device = false;
}
// LeakSanitizer asks at the end of the process. What an abandoned device may use is leaked on
// purpose; all else is checked.
extern "C" int __lsan_is_turned_off() {
  return left_a_hung_device ? 1 : 0;
}

namespace bulkhead::forward {
namespace {

namespace fault = gpu::fault;
using engine::Column;
using engine::Executor;
using engine::Output;
using engine::PageIndex;
using engine::TokenId;

// Validated where the layer is installed. Null: no device.
std::unique_ptr<gpu::Device> open_device() {
  gpu::DeviceOptions options;
  const char* const wanted = std::getenv("BULKHEAD_TEST_DEVICE");
  options.selector = wanted != nullptr ? wanted : "cpu";
  for (const bool validation : {true, false}) {
    options.validation = validation;
    auto opened = gpu::Device::open(options);
    if (opened.ok()) return *std::move(opened);
  }
  return nullptr;
}

// One small layer whose weights are not all alike.
std::string small_model() {
  const model::testing::GgufBuilder builder = model::testing::small_llama();
  std::string bytes = builder.bytes();
  char* const data = bytes.data() + bytes.size() - builder.data_bytes;
  std::mt19937 random(7);
  for (std::size_t i = 0; i < builder.tensors.size(); ++i) {
    const auto& tensor = builder.tensors[i];
    char* at = data + tensor.offset;
    std::uint64_t elements = 1;
    for (const auto n : tensor.ne)
      elements *= n;
    if (tensor.type == 0) {
      for (std::uint64_t e = 0; e < elements; ++e) {
        const float one = 1;
        std::memcpy(at + e * 4, &one, 4);
      }
      continue;
    }
    for (std::uint64_t block = 0; block < elements / 32; ++block, at += 34) {
      const std::uint16_t scale = 0x2400;  // 1/64
      std::memcpy(at, &scale, 2);
      for (int q = 0; q < 32; ++q)
        at[2 + q] = static_cast<char>(static_cast<int>(random() % 255) - 127);
    }
  }
  return bytes;
}

struct Row {
  TokenId best = 0;
  float logprob = 0;
  std::vector<float> logits;
  bool operator==(const Row& other) const {
    return best == other.best && std::memcmp(&logprob, &other.logprob, 4) == 0 &&
           logits.size() == other.logits.size() &&
           (logits.empty() ||
            std::memcmp(logits.data(), other.logits.data(), logits.size() * 4) == 0);
  }
};

Result<std::vector<Row>> run_step(Executor& executor, const std::vector<Column>& columns,
                                  const std::vector<std::vector<PageIndex>>& pages) {
  const std::vector<std::span<const PageIndex>> sequences(pages.begin(), pages.end());
  BULKHEAD_RETURN_IF_ERROR(executor.submit({columns, sequences}));
  BULKHEAD_TRY(const auto outputs, executor.wait());
  std::vector<Row> rows;
  for (const auto& output : outputs) {
    rows.push_back(
        {output.best, output.best_logprob, {output.logits.begin(), output.logits.end()}});
  }
  return rows;
}

class FailingDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_ == nullptr) GTEST_SKIP() << "no usable Vulkan device";
    auto file = model::testing::open_bytes(bytes_);
    ASSERT_TRUE(file.ok()) << file.error().message();
    file_ = *std::move(file);
    auto graph = model::read_model(*file_);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    graph_ = *graph;
    options_.engine.max_batch = 2;
    options_.engine.prefill_chunk = 4;
    options_.engine.kv_cache_mb = 1;
    options_.wait_timeout_ms = 60000;
    options_.gpu.graceful_fallback = false;
    options_.gpu.memory_pool.heap_size_mb = 4;
    options_.gpu.memory_pool.num_heaps = 1;
    options_.gpu.memory_pool.warmup_sizes = {};
    options_.gpu.blit_queue.staging_buffer_size_mb = 1;
  }
  void TearDown() override {
    fault::arm(0);
    if (device_ == nullptr) return;
    left_a_hung_device |= device_->abandoned();
    EXPECT_EQ(device_->validation_errors(), 0U) << "see the log above";
    if (!device_->abandoned()) {
      EXPECT_EQ(device_->allocations_alive(), 0U);
    }
  }

  Result<std::unique_ptr<Transformer>> load() {
    return make_transformer(*device_, *file_, graph_, options_);
  }

  // A prompt of two sequences and a token for one of them.
  Result<std::vector<Row>> load_and_run() {
    BULKHEAD_TRY(const std::unique_ptr<Transformer> executor, load());
    const std::vector<std::vector<PageIndex>> pages{{1}, {0}};
    BULKHEAD_TRY(std::vector<Row> rows, run_step(*executor,
                                                 {{5, 0, 0, Output::kNone},
                                                  {9, 1, 0, Output::kLogits},
                                                  {77, 0, 1, Output::kNone},
                                                  {30, 1, 1, Output::kGreedy}},
                                                 pages));
    BULKHEAD_TRY(const std::vector<Row> more,
                 run_step(*executor, {{rows[0].best, 2, 0, Output::kLogits}}, pages));
    rows.insert(rows.end(), more.begin(), more.end());
    return rows;
  }

  const std::string bytes_ = small_model();
  std::unique_ptr<gpu::Device> device_ = open_device();
  std::unique_ptr<model::GgufFile> file_;
  model::ModelGraph graph_;
  TransformerOptions options_;
};

class EachCall : public FailingDevice, public ::testing::WithParamInterface<gpu::FaultCase> {};

TEST_P(EachCall, EndsInAnErrorOrChangesNothing) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  options_.gpu.enabled = GetParam().enabled;
  options_.gpu.blit_queue.use_shared_events = GetParam().shared_events;
  const auto right = load_and_run();
  ASSERT_TRUE(right.ok()) << right.error().message();
  ASSERT_EQ(right->size(), 3U);
  const ErrorCode expected = GetParam().expected();
  std::uint64_t n = 0, errors = 0;
  bool fired = true;
  while (fired && n < 1000) {
    fault::arm(++n, GetParam().kinds, GetParam().result);
    const auto rows = load_and_run();
    fired = fault::fired();
    if (!rows.ok()) {
      ++errors;
      ASSERT_TRUE(fired) << rows.error().message();
      ASSERT_EQ(rows.error().code(), expected) << "call " << n << ": " << rows.error().message();
    } else {
      ASSERT_EQ(*rows, *right) << "call " << n;
    }
    ASSERT_FALSE(device_->abandoned());
    ASSERT_EQ(device_->allocations_alive(), 0U) << "call " << n;
    ASSERT_EQ(device_->validation_errors(), 0U) << "call " << n;
  }
  EXPECT_FALSE(fired);
  EXPECT_GT(errors, 3U);
}

INSTANTIATE_TEST_SUITE_P(All, EachCall, gpu::all_fault_cases(),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(FailingDevice, APartThatCanNotStartIsDoneWithout) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  const auto right = load_and_run();
  ASSERT_TRUE(right.ok()) << right.error().message();
  options_.gpu.graceful_fallback = true;
  options_.gpu.fallback_log_level = "debug";
  const auto falls_back = [&](std::uint64_t n, fault::Call call, std::size_t part) {
    fault::arm(n, call);
    const auto executor = load();
    EXPECT_TRUE(fault::fired());
    ASSERT_TRUE(executor.ok()) << executor.error().message();
    const auto parts = (*executor)->optimizations();
    ASSERT_EQ(parts.size(), 3U);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].active, i != part) << parts[i].name;
      EXPECT_EQ(parts[i].reason.empty(), i != part) << parts[i].reason;
    }
    fault::arm(n, call);
    const auto rows = load_and_run();
    ASSERT_TRUE(rows.ok()) << rows.error().message();
    EXPECT_EQ(*rows, *right);
  };
  for (std::uint64_t n = 1; n <= 3; ++n)  // a heap, two staging rings
    falls_back(n, fault::Call::kAllocate, n == 1 ? 0 : 1);
  for (std::uint64_t n = 1; n <= 6; ++n)  // a pool and a semaphore for either lane and the ring
    falls_back(n, fault::Call::kCreate, n <= 4 ? 1 : 2);
}

TEST_F(FailingDevice, AStepWithoutMemoryMayBeTriedAgain) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  options_.gpu.memory_pool.enabled = false;  // each step allocates its scratch buffer
  const auto executor = load();
  ASSERT_TRUE(executor.ok()) << executor.error().message();
  const std::vector<Column> columns{{5, 0, 0, Output::kLogits}};
  const auto right = run_step(**executor, columns, {{0}});
  ASSERT_TRUE(right.ok());
  fault::arm(1, fault::Call::kAllocate);
  const auto failed = run_step(**executor, columns, {{0}});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::kResourceExhausted);
  const auto again = run_step(**executor, columns, {{0}});
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(*again, *right);
}

// Without the pool each step's memory is new. A driver gives out again what was freed last, until
// somebody else takes it: then addresses that were recorded are another's.
TEST_F(FailingDevice, AStepsMemoryMayLieElsewhereThanTheLastOnes) {
  options_.gpu.memory_pool.enabled = false;
  const std::vector<Column> columns{{5, 0, 0, Output::kLogits}};
  for (const bool ring : {false, true}) {
    options_.gpu.command_buffer_ring.enabled = ring;
    const auto executor = load();
    ASSERT_TRUE(executor.ok()) << executor.error().message();
    const auto planned = [&] {
      for (const auto& each : (*executor)->counters()) {
        if (each.name == "plan_seconds") return each.value;
      }
      return -1.0;
    };
    const auto right = run_step(**executor, columns, {{0}});
    ASSERT_TRUE(right.ok());
    const double before = planned();
    EXPECT_GT(before, 0);
    std::vector<gpu::Buffer> taken;
    for (int i = 0; i < 64; ++i) {
      auto buffer = device_->allocate(std::uint64_t{4096} << (i % 10), gpu::Memory::kDeviceLocal,
                                      "somebody else's");
      ASSERT_TRUE(buffer.ok()) << buffer.error().message();
      taken.push_back(*std::move(buffer));
      const auto again = run_step(**executor, columns, {{0}});
      ASSERT_TRUE(again.ok()) << again.error().message();
      EXPECT_EQ(*again, *right);
    }
    EXPECT_GT(planned(), before) << "it never lay elsewhere: nothing was tried";
  }
}

// Lets a device stand still: its queue waits for the host.
class Standstill {
 public:
  explicit Standstill(gpu::Device& device) : device_(device) {
    VkSemaphoreTypeCreateInfo type{};
    type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
    info.pNext = &type;
    EXPECT_EQ(vkCreateSemaphore(device_.handle(), &info, nullptr, &semaphore_), VK_SUCCESS);
  }
  ~Standstill() {
    end();
    vkDestroySemaphore(device_.handle(), semaphore_, nullptr);
  }
  void begin() {
    VkSemaphoreSubmitInfo wait{};
    wait.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO;
    wait.semaphore = semaphore_;
    wait.value = 1;
    wait.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT;
    VkSubmitInfo2 info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2;
    info.waitSemaphoreInfoCount = 1;
    info.pWaitSemaphoreInfos = &wait;
    for (const VkQueue queue :
         {device_.compute_queue(), device_.transfer_queue(), device_.download_queue()}) {
      EXPECT_EQ(vkQueueSubmit2(queue, 1, &info, VK_NULL_HANDLE), VK_SUCCESS);
    }
    begun_ = true;
  }
  // The device goes on, with whatever it was given meanwhile, and comes to the end of it.
  void end() {
    go_on();
    vkDeviceWaitIdle(device_.handle());
  }
  void go_on() {
    if (!std::exchange(begun_, false)) return;
    VkSemaphoreSignalInfo signal{};
    signal.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO;
    signal.semaphore = semaphore_;
    signal.value = 1;
    EXPECT_EQ(vkSignalSemaphore(device_.handle(), &signal), VK_SUCCESS);
  }
  bool begun() const { return begun_; }

 private:
  gpu::Device& device_;
  VkSemaphore semaphore_ = VK_NULL_HANDLE;
  bool begun_ = false;
};

TEST_F(FailingDevice, AHangWhileUploadingIsAnError) {
  for (const bool enabled : {true, false}) {
    device_ = open_device();
    Standstill standstill(*device_);
    options_.gpu.enabled = enabled;
    options_.wait_timeout_ms = 200;
    standstill.begin();
    const auto executor = load();
    ASSERT_FALSE(executor.ok());
    EXPECT_EQ(executor.error().code(), ErrorCode::kDeadlineExceeded) << executor.error().message();
    EXPECT_TRUE(device_->abandoned());
  }
}

TEST_F(FailingDevice, AHangInTheWarmUpIsAnError) {
  for (const bool enabled : {true, false}) {
    device_ = open_device();
    Standstill standstill(*device_);
    options_.gpu.enabled = enabled;
    options_.wait_timeout_ms = 2000;
    options_.progress = [&](const std::string& stage, std::uint64_t, std::uint64_t) {
      if (stage == "warm-up" && !standstill.begun()) standstill.begin();
    };
    const auto executor = load();
    ASSERT_FALSE(executor.ok());
    EXPECT_EQ(executor.error().code(), ErrorCode::kDeadlineExceeded) << executor.error().message();
    EXPECT_TRUE(device_->abandoned());
  }
}

TEST_F(FailingDevice, AHangInAStepIsAnErrorAndTheEnd) {
  options_.wait_timeout_ms = 3000;
  auto executor = load();
  ASSERT_TRUE(executor.ok()) << executor.error().message();
  Standstill standstill(*device_);
  standstill.begin();
  const std::vector<Column> columns{{5, 0, 0, Output::kLogits}};
  const auto rows = run_step(**executor, columns, {{0}});
  ASSERT_FALSE(rows.ok());
  EXPECT_EQ(rows.error().code(), ErrorCode::kDeadlineExceeded);
  const auto more = run_step(**executor, columns, {{0}});
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().message(), rows.error().message());
  executor->reset();
  EXPECT_TRUE(device_->abandoned());
}

// What ends has nothing under way of its own, and somebody else's work does not end.
TEST_F(FailingDevice, AnEndBesideAHangIsBounded) {
  for (const bool enabled : {true, false}) {
    device_ = open_device();
    Standstill standstill(*device_);
    {
      const auto ring = gpu::CommandRing::create(*device_, {}, enabled, 200);
      ASSERT_TRUE(ring.ok());
      standstill.begin();
    }
    EXPECT_TRUE(device_->abandoned());
  }
}

TEST_F(FailingDevice, AHangInTheFirstSubmissionsIsAnError) {
  ASSERT_TRUE(gpu::wear_in(*device_, 200, 60000).ok());
  Standstill standstill(*device_);
  standstill.begin();
  const Status status = gpu::wear_in(*device_, 200, 200);
  EXPECT_EQ(status.error().code(), ErrorCode::kDeadlineExceeded) << status.error().message();
  EXPECT_TRUE(device_->abandoned());
}

TEST_F(FailingDevice, ASlowFirstStepGivesSignsOfLife) {
  Standstill standstill(*device_);
  std::optional<std::chrono::steady_clock::time_point> began;
  int signs = 0;
  // The device goes on only because somebody is told, while it stands still, that loading waits.
  options_.progress = [&](const std::string& stage, std::uint64_t, std::uint64_t) {
    if (stage != "warm-up") return;
    const auto now = std::chrono::steady_clock::now();
    if (!began) {
      began = now;
      standstill.begin();
    } else if (standstill.begun() && now - *began > std::chrono::milliseconds(600)) {
      ++signs;
      standstill.go_on();
    }
  };
  const auto executor = load();
  ASSERT_TRUE(executor.ok()) << executor.error().message();
  EXPECT_EQ(signs, 1);
}

double counter(const Executor& executor, const std::string& name) {
  for (const auto& each : executor.counters()) {
    if (each.name == name) return each.value;
  }
  ADD_FAILURE() << "no counter " << name;
  return 0;
}

TEST(StepShapes, AreNoMoreThanTheRingKeeps) {
  for (const std::uint32_t most : {8U, 7U, 12U}) {
    for (const std::uint32_t columns : {1U, 17U, 272U, 544U, 1056U, 4160U, 1U << 20}) {
      for (const std::uint32_t mixed : {columns, columns / 2 + 1, 20U, 272U}) {
        const std::vector<StepShape> shapes = step_shapes(columns, mixed, 16, most);
        EXPECT_LE(shapes.size(), most) << columns;
        EXPECT_EQ(shapes.back().columns, columns);
        EXPECT_EQ(shape_for(shapes, 1, 1).columns, 1U);
        for (std::size_t i = 1; i < shapes.size(); ++i)
          EXPECT_LT(shapes[i - 1].columns, shapes[i].columns);
      }
    }
  }
  const std::uint32_t kept = config::CommandBufferRingSettings().ring_size;
  const config::EngineSettings defaults;
  const std::uint32_t mixed = widest_mixed_step(defaults);
  EXPECT_EQ(step_shapes(widest_step(defaults, false), mixed, 16, kept),
            step_shapes(widest_step(defaults, false), mixed, 16, 100))
      << "the defaults leave none out";
  EXPECT_EQ(step_shapes(1056, 1056, 16, 1).size(), 7U) << "narrow ones are not left out";
}

TEST(StepShapes, AChunkBesideThoseThatGenerateHasItsOwn) {
  const std::vector<StepShape> shapes = step_shapes(2048, 272, 16, 16);
  EXPECT_EQ(shape_for(shapes, 256, 16).columns, 272U);
  EXPECT_EQ(shape_for(shapes, 273, 1).columns, 512U);
  EXPECT_EQ(shape_for(shapes, 513, 1).columns, 1024U);
  EXPECT_EQ(shape_for(shapes, 1025, 1).columns, 2048U);
  EXPECT_EQ(shape_for(shapes, 60, 16).columns, 64U);
}

// Prompts arrive at random, are cut into what the step has room for, and are decoded beside each
// other.
TEST_F(FailingDevice, AMixedLoadRecordsNothingAnew) {
  options_.engine.max_batch = 6;
  options_.engine.prefill_chunk = 40;
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  Executor& executor = **loaded;
  const std::uint32_t page_tokens = executor.limits().page_tokens;
  const std::uint32_t pages_each = (executor.limits().context + page_tokens - 1) / page_tokens;
  ASSERT_GE(executor.limits().total_pages, 7 * pages_each);
  const auto pages_of = [&](std::uint32_t slot) {
    std::vector<PageIndex> pages;
    for (std::uint32_t i = 0; i < pages_each; ++i)
      pages.push_back(slot * pages_each + i);
    return pages;
  };
  struct Sequence {
    std::vector<TokenId> tokens;
    std::uint32_t prompt = 0, done = 0;
    std::vector<Row> rows;
  };
  const double recordings = counter(executor, "ring_recordings");
  const double allocations = counter(executor, "device_allocations");
  std::mt19937 random(3);
  std::vector<Sequence> running, finished;
  std::vector<std::vector<PageIndex>> pages;
  for (std::uint32_t slot = 0; slot < 6; ++slot) {
    pages.push_back(pages_of(slot));
    running.emplace_back();
  }
  int steps = 0;
  for (; finished.size() < 12; ++steps) {
    std::vector<Column> columns;
    std::vector<Sequence*> asked;
    std::uint32_t room = std::min(40U, executor.limits().max_columns - 6);
    for (std::uint32_t slot = 0; slot < 6; ++slot) {
      Sequence& sequence = running[slot];
      if (sequence.tokens.empty()) {
        if (random() % 4 != 0) continue;
        sequence.prompt = 1 + random() % 45;
        for (std::uint32_t i = 0; i < sequence.prompt; ++i)
          sequence.tokens.push_back(3 + random() % 256);
      }
      const auto left = static_cast<std::uint32_t>(sequence.tokens.size()) - sequence.done;
      const std::uint32_t count = left == 1 ? 1 : std::min(left, room);
      if (left > 1) room -= count;
      for (std::uint32_t i = 0; i < count; ++i, ++sequence.done) {
        const bool last = sequence.done + 1 == sequence.tokens.size();
        columns.push_back({sequence.tokens[sequence.done], sequence.done, slot,
                           last ? Output::kLogits : Output::kNone});
        if (last) asked.push_back(&sequence);
      }
    }
    if (columns.empty()) continue;
    const auto rows = run_step(executor, columns, pages);
    ASSERT_TRUE(rows.ok()) << rows.error().message();
    ASSERT_EQ(rows->size(), asked.size());
    for (std::size_t i = 0; i < asked.size(); ++i) {
      asked[i]->rows.push_back((*rows)[i]);
      asked[i]->tokens.push_back((*rows)[i].best);
      if (asked[i]->rows.size() < 8) continue;
      finished.push_back(std::exchange(*asked[i], Sequence{}));
    }
  }
  EXPECT_GT(steps, 20);
  EXPECT_EQ(counter(executor, "ring_recordings"), recordings);
  EXPECT_EQ(counter(executor, "device_allocations"), allocations);

  // Alone and token by token each gives the same bits.
  for (const Sequence& sequence : finished) {
    std::vector<Row> alone;
    for (std::uint32_t i = 0; i + 1 < sequence.tokens.size(); ++i) {
      const bool asks = i + 1 >= sequence.prompt;
      const auto rows =
          run_step(executor, {{sequence.tokens[i], i, 0, asks ? Output::kLogits : Output::kNone}},
                   {pages_of(6)});
      ASSERT_TRUE(rows.ok()) << rows.error().message();
      alone.insert(alone.end(), rows->begin(), rows->end());
    }
    EXPECT_TRUE(alone == sequence.rows);
  }
}

}  // namespace
}  // namespace bulkhead::forward
