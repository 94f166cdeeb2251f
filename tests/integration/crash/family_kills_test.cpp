// kill -9 while one model of each family reads a prompt or generates: the stream must be that of an undisturbed run.
// BULKHEAD_CRASH_KILLS: kills for each model (one by default); BULKHEAD_CRASH_SEED: at which moments.
#include <random>

#include "tests/integration/crash/streams.hpp"
#include "tests/support/family_test.hpp"

namespace bulkhead::test {
namespace {

int number_from(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

using FamilyKills = FamilyTest;
INSTANTIATE_TEST_SUITE_P(Families, FamilyKills, testing::ValuesIn(kFamilies), family_test_name);

TEST_P(FamilyKills, StreamsAreWhole) {
  const int kills = number_from("BULKHEAD_CRASH_KILLS", 1);
  const int seed = number_from("BULKHEAD_CRASH_SEED", 1);
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto between = [&random](int least, int most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  const Serving serving = serve_model(model_.string(), {"engine.speculation=off"});
  // A prompt of three pages and more, beyond the windows; each piece is a token.
  std::string prompt;
  for (int i = 0; i < 28; ++i)
    prompt += "word " + std::to_string(i) + ", ";
  constexpr int kTokens = 16;
  std::vector<json> requests;
  std::vector<Heard> undisturbed;
  for (const bool sampled : {false, true}) {
    if (sampled && kills == 1) continue;
    requests.push_back(request_of(sampled, kTokens, prompt, 1234));
    undisturbed.push_back(stream(serving.port, requests.back()).heard);
    ASSERT_EQ(undisturbed.back().ids.size(), static_cast<std::size_t>(kTokens));
    ASSERT_TRUE(undisturbed.back().done);
  }
  for (int i = 0; i < kills; ++i) {
    // Every third kill is during the prompt.
    const int pieces = i % 3 == 2 ? 0 : between(1, kTokens - 2);
    const std::chrono::microseconds more{between(0, pieces == 0 ? 200000 : 3000)};
    SCOPED_TRACE("seed " + std::to_string(seed) + ", kill " + std::to_string(i) + ": " +
                 std::to_string(more.count()) + " us after piece " + std::to_string(pieces));
    const std::size_t which = static_cast<std::size_t>(i) % requests.size();
    const pid_t victim = serving_worker(serving);
    const Timed killed = stream(serving.port, requests[which], pieces, [&] {
      std::this_thread::sleep_for(more);
      send_signal(victim, SIGKILL);
    });
    EXPECT_EQ(killed.heard, undisturbed[which]);
    EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == i + 1; }));
  }
}

}  // namespace
}  // namespace bulkhead::test
