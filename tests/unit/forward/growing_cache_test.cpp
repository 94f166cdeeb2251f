// A KV cache that grows on a real device. The tokens must be those of a large cache of a fixed size, whatever slab the
// pages lie in.
#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fixtures.hpp"
#include "tests/support/log_capture.hpp"
#include "tests/unit/forward/builtin_on_device.hpp"
#include "worker/forward/split_transformer.hpp"

namespace bulkhead::forward {
namespace {

constexpr std::chrono::seconds kKept{60};
constexpr std::uint32_t kContext = 600;  // 19 pages; a cache of 2 MiB has 20
constexpr std::uint32_t kAnswer = 60;

using Answers = std::map<std::uint64_t, std::vector<engine::TokenId>>;

// The kernels of a CPU device, or those of GPUs, which are slow on a CPU.
enum class Kernels : std::uint8_t { kOwn, kOfGpus };

class GrowingCache : public BuiltinOnDevice {
 protected:
  // Replaces the built-in model by a fixture with this many tokens of its vocabulary or more.
  void use_fixture(const std::string& name, std::uint64_t vocabulary) {
    const auto path = test::fixtures() / "models" / (name + ".gguf");
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
    auto file = model::GgufFile::open(path.string());
    ASSERT_TRUE(file.ok()) << file.error().message();
    file_ = *std::move(file);
    auto tokenizer = model::Tokenizer::from_gguf(*file_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    tokenizer_ = *std::move(tokenizer);
    language_.tokenizer = tokenizer_.get();
    vocabulary_ = vocabulary;
  }

  TransformerOptions cache_options(std::uint32_t kv_cache_mb, std::uint32_t most_mb) const {
    TransformerOptions made = small_options(8);
    made.engine.kv_cache_mb = kv_cache_mb;
    made.engine.kv_cache_max_mb = most_mb;
    made.engine.kv_type = kv_type_;
    made.context = kContext;
    made.exportable = true;
    made.lanes_mapping = kernels_ == Kernels::kOfGpus;
    return made;
  }

  std::unique_ptr<engine::Executor> load_cache(std::uint32_t kv_cache_mb, std::uint32_t most_mb) {
    const TransformerOptions made = cache_options(kv_cache_mb, most_mb);
    return other_ == nullptr ? load(made) : load_split(made);
  }

  // Loads models over two devices from now on: the test's device, opened twice.
  void split() {
    auto opened = gpu::Device::open(test::chosen_device_options());
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    other_ = *std::move(opened);
  }

  std::unique_ptr<engine::Executor> load_split(const TransformerOptions& options) {
    const auto graph = model::read_model(*file_);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    if (!graph.ok()) return nullptr;
    gpu::Device* const devices[] = {device_.get(), other_.get()};
    auto executor = make_split_transformer(devices, *file_, *graph, options);
    EXPECT_TRUE(executor.ok()) << executor.error().message();
    return executor.ok() ? *std::move(executor) : nullptr;
  }

  std::uint64_t allocated_bytes() const {
    return device_->allocated_bytes() + (other_ == nullptr ? 0 : other_->allocated_bytes());
  }

  // Loads a cache that grows, and compares its answers with `expected` before and after it has shrunk again.
  void expect_growth(std::uint32_t kv_cache_mb, std::uint32_t most_mb, const Answers& expected) {
    ASSERT_FALSE(expected.empty());
    const std::uint64_t first = expected.begin()->first;
    const auto executor = load_cache(kv_cache_mb, most_mb);
    ASSERT_NE(executor, nullptr);
    ASSERT_GT(executor->limits().slab_pages, 0U);
    const std::uint64_t before = allocated_bytes();
    const auto engine = engine_over(*executor);
    EXPECT_EQ(figure(*engine, "kv_pages_present"), executor->limits().first_pages);
    EXPECT_EQ(answers(*engine, first), expected);
    EXPECT_GE(figure(*engine, "kv_slabs"), 1);
    EXPECT_GT(figure(*engine, "kv_pages_present"), executor->limits().first_pages);
    EXPECT_EQ(figure(*engine, "preemptions_total"), 0);
    EXPECT_GT(allocated_bytes(), before);
    if (executor->limits().window > 0) {
      EXPECT_GT(figure(*engine, "window_pages_present"), executor->limits().window_first_pages);
    }
    const double grown = figure(*engine, "kv_bytes");

    idle(*engine, 2 * kKept);
    EXPECT_GT(figure(*engine, "kv_pages_checked_total"), 40);
    EXPECT_EQ(figure(*engine, "kv_slabs"), 0);
    EXPECT_EQ(allocated_bytes(), before);
    EXPECT_LT(figure(*engine, "kv_bytes"), grown);
    EXPECT_EQ(answers(*engine, first), expected);
    EXPECT_EQ(figure(*engine, "kv_pages_damaged_total"), 0);
  }

  Answers answers_of_a_fixed_one(std::uint64_t first = 1) {
    const auto roomy = load_cache(64, 0);
    if (roomy == nullptr) return {};
    EXPECT_EQ(roomy->limits().slab_pages, 0U);
    return answers(*engine_over(*roomy), first);
  }

  std::unique_ptr<engine::Engine> engine_over(engine::Executor& executor) {
    engine::EngineOptions options;
    options.scheduler.max_batch = 8;
    options.scheduler.prefill_chunk = 32;
    options.scheduler.prefix_cache = true;
    options.check_memory = std::chrono::seconds(5);
    options.keep_slabs = kKept;
    options.now = [this] { return now_; };
    return std::make_unique<engine::Engine>(
        executor, language_, options, [this](const ipc::FromWorker& message) {
          const auto* const batch = std::get_if<ipc::TokenBatch>(&message);
          if (batch == nullptr) return;
          for (const auto& sequence : batch->sequences) {
            auto& answer = answers_[sequence.request.value];
            answer.insert(answer.end(), sequence.tokens.begin(), sequence.tokens.end());
          }
        });
  }

  // Greedy and drawn answers to prompts of different lengths, all at once.
  Answers answers(engine::Engine& engine, std::uint64_t first = 1) {
    constexpr std::uint64_t kLast = 6;
    answers_.clear();
    for (std::uint64_t id = first; id <= kLast; ++id) {
      ipc::Submit submit;
      submit.request = RequestId{id};
      std::vector<ipc::TokenId> prompt;
      for (std::uint64_t i = 0; i < 50 + 37 * id; ++i)
        prompt.push_back(static_cast<ipc::TokenId>((i * 7919 + id * 31) % vocabulary_));
      submit.prompt = prompt;
      submit.sampling.temperature = id % 2 == 0 ? 0 : 0.9F;
      submit.sampling.seed = id;
      submit.max_tokens = kAnswer;
      submit.ignore_eos = true;
      engine.submit(std::move(submit));
    }
    while (engine.outstanding() > 0) {
      now_ += std::chrono::milliseconds(5);
      const auto ran = engine.turn([] {});
      EXPECT_TRUE(ran.ok()) << ran.error().message();
      if (!ran.ok()) break;
    }
    for (std::uint64_t id = first; id <= kLast; ++id)
      EXPECT_EQ(answers_[id].size(), kAnswer);
    return answers_;
  }

  // The answers with a cache of a fixed size that has room for all; computed once for all tests.
  const Answers& answers_of_a_large_one() {
    static const Answers all = answers_of_a_fixed_one();
    return all;
  }

  void idle(engine::Engine& engine, std::chrono::seconds time) {
    for (const auto end = now_ + time; now_ < end; now_ += std::chrono::seconds(1)) {
      const auto ran = engine.turn([] {});
      ASSERT_TRUE(ran.ok()) << ran.error().message();
    }
  }

  static double figure(const engine::Engine& engine, const std::string& name) {
    for (const ipc::Counter& each : engine.stats().counters) {
      if (each.name == name) return each.value;
    }
    ADD_FAILURE() << "no figure " << name;
    return -1;
  }

  engine::Clock::time_point now_{};
  Answers answers_;
  std::unique_ptr<gpu::Device> other_;  // null: models are not split
  config::KvType kv_type_ = config::KvType::kF16;
  Kernels kernels_ = Kernels::kOwn;
  std::uint64_t vocabulary_ = 2000;
};

TEST_F(GrowingCache, GivesTheTokensOfALargeOneAndShrinksAgain) {
  const Answers& expected = answers_of_a_large_one();
  const auto executor = load_cache(2, 32);
  ASSERT_NE(executor, nullptr);
  const engine::ExecutorLimits& limits = executor->limits();
  EXPECT_EQ(limits.first_pages, 20U);
  EXPECT_EQ(limits.slab_pages, 21U);
  EXPECT_GT(limits.total_pages, 300U);
  EXPECT_EQ(limits.context, kContext);
  const std::uint64_t before = device_->allocated_bytes();
  const auto engine = engine_over(*executor);
  EXPECT_EQ(answers(*engine), expected);
  EXPECT_GE(figure(*engine, "kv_slabs"), 2);
  EXPECT_EQ(figure(*engine, "preemptions_total"), 0);
  EXPECT_EQ(figure(*engine, "kv_slabs_refused_total"), 0);
  EXPECT_GT(device_->allocated_bytes(), before + (3U << 20));

  idle(*engine, 2 * kKept);
  EXPECT_GT(figure(*engine, "kv_pages_checked_total"), 40) << "in the background";
  EXPECT_EQ(figure(*engine, "kv_pages_damaged_total"), 0);
  EXPECT_EQ(figure(*engine, "kv_slabs"), 0);
  EXPECT_EQ(device_->allocated_bytes(), before);

  Answers last = expected;
  last.erase(1);
  last.erase(2);
  last.erase(3);
  EXPECT_EQ(answers(*engine, 4), last) << "in slabs that came again";
  EXPECT_GE(figure(*engine, "kv_slabs"), 1);
  EXPECT_EQ(figure(*engine, "kv_pages_damaged_total"), 0);
}

TEST_F(GrowingCache, WhenItCanGrowNoFurtherSequencesLosePages) {
  const Answers& expected = answers_of_a_large_one();
  const auto executor = load_cache(2, 5);
  ASSERT_NE(executor, nullptr);
  EXPECT_EQ(executor->limits().total_pages, 41U);
  const auto engine = engine_over(*executor);
  EXPECT_EQ(answers(*engine), expected);
  EXPECT_EQ(figure(*engine, "kv_slabs"), 1);
  EXPECT_GT(figure(*engine, "preemptions_total"), 0);
}

TEST_F(GrowingCache, GivesTheSameTokensWithTheKernelsOfGpus) {
  Answers expected;
  constexpr std::uint64_t kFirst = 5;
  kernels_ = Kernels::kOfGpus;
  {
    const auto roomy = load_cache(64, 0);
    ASSERT_NE(roomy, nullptr);
    expected = answers(*engine_over(*roomy), kFirst);
  }
  const auto executor = load_cache(2, 32);
  ASSERT_NE(executor, nullptr);
  const auto engine = engine_over(*executor);
  EXPECT_EQ(answers(*engine, kFirst), expected);
  EXPECT_GE(figure(*engine, "kv_slabs"), 1);
  EXPECT_EQ(figure(*engine, "preemptions_total"), 0);
}

// The states lie beside the slabs, in memory that stays. A MiB holds 32 pages.
TEST_F(GrowingCache, OfAModelWithStatesGivesTheTokensOfALargeOneAndShrinksAgain) {
  ASSERT_NO_FATAL_FAILURE(use_fixture("tiny-qwen35-Q4_K_M", 3200));
  if (IsSkipped()) return;
  kv_type_ = config::KvType::kF32;
  const Answers expected = answers_of_a_fixed_one();
  expect_growth(1, 16, expected);
}

// A MiB holds 19 full pages, a context, and 11 window pages; a sequence needs 5 of these to go on.
TEST_F(GrowingCache, OfAModelWithWindowsGrowsInBothKindsOfPages) {
  ASSERT_NO_FATAL_FAILURE(use_fixture("tiny-gpt-oss-MXFP4", 3200));
  if (IsSkipped()) return;
  expect_growth(1, 32, answers_of_a_fixed_one());
}

// A kernel that read a page before a window would read memory that has been given back.
TEST_F(GrowingCache, OfAModelWithWindowsGrowsWithTheKernelsOfGpus) {
  ASSERT_NO_FATAL_FAILURE(use_fixture("tiny-gemma3-Q4_K_M", 3200));
  if (IsSkipped()) return;
  kernels_ = Kernels::kOfGpus;
  constexpr std::uint64_t kFirst = 4;
  expect_growth(1, 32, answers_of_a_fixed_one(kFirst));
}

// Full pages and window pages have different sizes.
TEST_F(GrowingCache, OfAModelWithHeadsOfTwoSizesGrowsInBothKindsOfPages) {
  ASSERT_NO_FATAL_FAILURE(use_fixture("tiny-gemma4moe-Q8_0", 1600));
  if (IsSkipped()) return;
  kv_type_ = config::KvType::kF32;
  expect_growth(1, 16, answers_of_a_fixed_one());
}

TEST_F(GrowingCache, OfASplitModelGrowsOnAllDevices) {
  const Answers& expected = answers_of_a_large_one();
  ASSERT_NO_FATAL_FAILURE(split());
  expect_growth(2, 32, expected);
}

TEST_F(GrowingCache, OfASplitModelWithWindowsGrowsOnAllDevices) {
  ASSERT_NO_FATAL_FAILURE(use_fixture("tiny-gpt-oss-MXFP4", 3200));
  if (IsSkipped()) return;
  const Answers expected = answers_of_a_fixed_one();
  ASSERT_NO_FATAL_FAILURE(split());
  expect_growth(1, 32, expected);
}

// Equal tokens at equal positions make equal bytes, wherever the page lies.
TEST_F(GrowingCache, PagesOfSlabsHaveTheSumsOfOtherPages) {
  const auto executor = load_cache(2, 32);
  ASSERT_NE(executor, nullptr);
  const engine::ExecutorLimits& limits = executor->limits();
  ASSERT_TRUE(executor->grow(2));
  ASSERT_TRUE(executor->grow(0));
  const std::vector<engine::PageIndex> pages = {3, limits.first_pages,
                                                limits.first_pages + 3 * limits.slab_pages - 1};
  for (const engine::PageIndex page : pages) {
    std::vector<engine::Column> columns(limits.page_tokens);
    for (std::uint32_t i = 0; i < limits.page_tokens; ++i)
      columns[i] = {100 + i, i, 0, engine::Output::kNone};
    const std::span<const engine::PageIndex> sequence(&page, 1);
    ASSERT_TRUE(executor->submit({.columns = columns, .sequences = std::span(&sequence, 1)}).ok());
    ASSERT_TRUE(executor->wait().ok());
  }
  ASSERT_TRUE(executor->start_sums(pages, 0).ok());
  const auto sums = executor->finish_sums();
  ASSERT_TRUE(sums.ok()) << sums.error().message();
  const std::vector<engine::PageSum> before(sums->begin(), sums->end());
  EXPECT_NE(before[0], engine::PageSum{});
  EXPECT_EQ(before[1], before[0]);
  EXPECT_EQ(before[2], before[0]);
}

// The memory of a model that has grown by four slabs, and what keeps these apart: memory of the host, so that they lie
// otherwise to each other than in a successor.
class GrownMemory {
 public:
  static constexpr std::uint32_t kSlabs = 4;

  explicit GrownMemory(Transformer& dead) : memory_(dead.export_memory()) {
    for (std::uint32_t slab = 0; slab < kSlabs && memory_.ok(); ++slab) {
      fillers_.push_back(
          ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      EXPECT_NE(fillers_.back(), MAP_FAILED);
      EXPECT_TRUE(dead.grow(slab));
      auto pieces = dead.export_slab(slab);
      EXPECT_TRUE(pieces.ok()) << pieces.error().message();
      if (!pieces.ok()) return;
      for (ExportedSlab& piece : *pieces)
        memory_->slabs.push_back(std::move(piece));
    }
  }
  ~GrownMemory() {
    for (void* const filler : fillers_)
      ::munmap(filler, 4096);
  }
  GrownMemory(const GrownMemory&) = delete;
  GrownMemory& operator=(const GrownMemory&) = delete;

  // An error if the device can't export memory.
  Result<ExportedMemory>& memory() { return memory_; }

 private:
  Result<ExportedMemory> memory_;
  std::vector<void*> fillers_;
};

// Addresses are a process's own: they may lie otherwise to each other in a successor, by as much as a host's page.
TEST_F(GrowingCache, ASuccessorFindsSlabsWhereverTheyLie) {
  const auto graph = model::read_model(*file_);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  TransformerOptions options = cache_options(2, 32);
  const auto made = make_transformer(*device_, *file_, *graph, options);
  ASSERT_TRUE(made.ok()) << made.error().message();
  Transformer& dead = **made;
  GrownMemory grown(dead);
  if (!grown.memory().ok()) GTEST_SKIP() << grown.memory().error().message();
  const engine::PageIndex page = dead.limits().first_pages + 3 * dead.limits().slab_pages + 1;
  const auto sum_of_page = [page](Transformer& executor) {
    EXPECT_TRUE(executor.start_sums(std::span(&page, 1), 0).ok());
    const auto sums = executor.finish_sums();
    EXPECT_TRUE(sums.ok()) << sums.error().message();
    return sums.ok() ? sums->front() : engine::PageSum{};
  };
  const std::span<const engine::PageIndex> sequence(&page, 1);
  const engine::Column column{100, 0, 0, engine::Output::kNone};
  ASSERT_TRUE(
      dead.submit({.columns = std::span(&column, 1), .sequences = std::span(&sequence, 1)}).ok());
  ASSERT_TRUE(dead.wait().ok());
  const engine::PageSum before = sum_of_page(dead);
  EXPECT_NE(before, engine::PageSum{});

  auto opened = gpu::Device::open(test::chosen_device_options());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  options.predecessor = &*grown.memory();
  const auto heir = make_transformer(**opened, *file_, *graph, options);
  ASSERT_TRUE(heir.ok()) << heir.error().message();
  EXPECT_EQ((*heir)->present_slabs(), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(sum_of_page(**heir), before);
}

// The pages of such slabs are computed again, so nothing else says that the successor lacks them.
TEST_F(GrowingCache, ASuccessorSaysOnceWhichSlabsItLeavesOut) {
  const auto graph = model::read_model(*file_);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  TransformerOptions options = cache_options(2, 32);
  const auto made = make_transformer(*device_, *file_, *graph, options);
  ASSERT_TRUE(made.ok()) << made.error().message();
  GrownMemory grown(**made);
  if (!grown.memory().ok()) GTEST_SKIP() << grown.memory().error().message();
  for (const std::size_t moved : {1, 2})
    grown.memory()->slabs[moved].offset += 16;  // pages begin where no page number leads

  auto opened = gpu::Device::open(test::chosen_device_options());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  options.predecessor = &*grown.memory();
  const test::LogCapture log;
  const auto heir = make_transformer(**opened, *file_, *graph, options);
  ASSERT_TRUE(heir.ok()) << heir.error().message();
  EXPECT_EQ((*heir)->present_slabs(), (std::vector<std::uint32_t>{0, 3}));
  EXPECT_EQ(log.count("[warning] " + (*opened)->info().name + ": 2 of 4 slabs of KV pages"), 1)
      << log.text();
}

}  // namespace
}  // namespace bulkhead::forward
