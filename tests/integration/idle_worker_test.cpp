// What a worker reports while it has nothing to compute.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/worker_serving.hpp"
#include "tests/support/worker_process.hpp"

namespace bulkhead::test {
namespace {

constexpr std::uint64_t kRequests = 12;

// Each takes three pages of both kinds.
ipc::Submit request_of_three_pages(std::uint64_t id) {
  ipc::Submit submit = greedy(id, "", 10);
  std::vector<ipc::TokenId> prompt(70);
  for (std::size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<ipc::TokenId>(300 + (id * 131 + i * 37) % 1000);
  submit.prompt = prompt;
  return submit;
}

// Slabs go back one after another, those of full pages first. So the last ones that go back are slabs of window pages.
TEST(IdleWorker, ReportsThatSlabsOfWindowPagesWentBack) {
  NEEDS_MODEL("tiny-gpt-oss-MXFP4");
  std::vector<std::string> arguments = serving("tiny-gpt-oss-MXFP4");
  for (const char* setting : {"engine.kv_cache_mb=1", "engine.kv_cache_max_mb=32",
                              "engine.kv_keep_s=2", "engine.max_batch=12"})
    arguments.insert(arguments.end(), {"--set", setting});
  WorkerProcess worker(kProgram, arguments, {});
  ASSERT_TRUE(worker.wait_ready()) << worker.why_not_ready();
  const auto figure = [&](const std::string& name) {
    if (!worker.stats) return -1.0;
    const auto& counters = worker.stats->counters;
    const auto found = std::ranges::find(counters, name, &ipc::Counter::name);
    return found == counters.end() ? -1.0 : found->value;
  };
  ASSERT_TRUE(worker.receive_until([&] { return worker.stats.has_value(); }));
  ASSERT_EQ(figure("kv_slabs"), 0);
  const double first = figure("window_pages_present");
  for (std::uint64_t id = 1; id <= kRequests; ++id)
    worker.send(request_of_three_pages(id));
  ASSERT_TRUE(worker.receive_until([&] { return figure("window_pages_present") >= 3 * first; }))
      << "at least two slabs, each as large as the first part";
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    ASSERT_TRUE(worker.receive_until([&] { return worker.answer(id).ended(); })) << id;
    EXPECT_EQ(worker.answer(id).tokens.size(), 10U) << id;
  }
  ASSERT_TRUE(worker.receive_until([&] {
    return figure("kv_slabs") == 0 && figure("kv_bytes") == figure("kv_bytes_at_first");
  })) << figure("kv_slabs")
      << " slabs; window pages: " << figure("window_pages_present");
  worker.send(ipc::Shutdown{});
  EXPECT_EQ(worker.wait_exit(), 0);
}

}  // namespace
}  // namespace bulkhead::test
