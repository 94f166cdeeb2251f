// Random requests come at random moments to engines with random caches and settings. Some are cancelled, steps are
// lost, pages change, logits are no numbers, slabs get no memory, and processes die. Each answer must be, to the bit,
// that of an engine that computes the request alone, without a cache, guesses or steps ahead.
//
// BULKHEAD_RANDOM_SERVING="FIRST COUNT" tries other seeds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/support/sample.hpp"
#include "tests/unit/engine/page_ledger.hpp"
#include "tests/unit/engine/random_requests.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "tests/unit/engine/varied_requests.hpp"
#include "worker/engine/draft_source.hpp"

namespace bulkhead::test {
namespace {

using engine::ExecutorLimits;
using engine::PageIndex;
using engine::StateSlot;

// What the vault of a process keeps.
struct Vault : KeptPages, engine::StateLedger {
  std::map<StateSlot, engine::EnteredState> states;
  void saved(const engine::EnteredState& state) override { states[state.slot] = state; }
  void overwritten(StateSlot slot) override { states.erase(slot); }
  std::vector<engine::EnteredState> entered_states() const {
    std::vector<engine::EnteredState> all;
    for (const auto& [slot, state] : states) {
      EXPECT_TRUE(knows(state.page)) << "slot " << slot << " is entered without its page";
      all.push_back(state);
    }
    return all;
  }
};

// What a client has got of an answer, from one process after another.
struct Received {
  Tokens tokens;
  std::string text;
  std::vector<ipc::TokenLogprob> logprobs, prompt;
  std::optional<ipc::Finished> finished;
  std::optional<ipc::Failed> failed;
  std::vector<float> embedding;
  bool cancelled = false;
  bool ended() const { return finished || failed || cancelled || !embedding.empty(); }
};

void add(const Answer& answer, Received& to) {
  to.tokens = to.tokens + answer.tokens;
  to.text += answer.text;
  to.logprobs.insert(to.logprobs.end(), answer.logprobs.begin(), answer.logprobs.end());
  if (answer.prompt.size() > to.prompt.size()) to.prompt = answer.prompt;
  to.finished = answer.finished;
  to.failed = answer.failed;
}

struct Work {
  std::optional<ipc::Submit> submit;
  ipc::Embed embed;
};

class RandomServing {
 public:
  explicit RandomServing(std::uint64_t seed) : draw_(seed) {
    options_ = some_options(draw_);
    limits_ = some_limits(draw_, options_.scheduler.max_batch);
    if (draw_.one_in(12)) {
      limits_ = limits_of_encoder(draw_);
    } else if (draw_.one_in(3)) {
      draft_limits_ = some_draft_limits();
    }
    if (draw_.one_in(4)) options_.pooling = engine::Pooling::kMean;
    make_works();
  }

  void expect_the_same_answers() {
    auto vault = std::make_unique<Vault>();
    auto harness = std::make_unique<EngineHarness>(limits_, with_guesses());
    watch(*harness, *vault);
    serve(*harness, *vault);
    for (std::uint32_t deaths = draw_.below(4); deaths > 0; --deaths) {
      take_answers(*harness);
      auto heir = std::make_unique<EngineHarness>(harness->executor, with_guesses());
      auto again = std::make_unique<Vault>();
      inherit(*heir, *again, *vault);
      harness->engine.set_ledger(nullptr);
      harness->engine.set_state_ledger(nullptr);
      harness = std::move(heir);
      vault = std::move(again);
      serve(*harness, *vault);
    }
    while (next_ <= works_.size())
      submit(*harness, next_++);
    harness->run();
    take_answers(*harness);
    compare();
    expect_nothing_kept(*harness);
  }

  std::uint64_t compared = 0, tokens = 0, resumed = 0;

 private:
  ExecutorLimits some_draft_limits() {
    ExecutorLimits limits = some_limits(draw_, 4);
    limits.steps_in_flight = 1;
    limits.slab_pages = limits.window_slab_pages = 0;
    if (limits.states > 0) limits.states = draw_.of({4U, 40U});
    limits.max_drafts = 0;
    limits.sampled_top_k = 64;
    limits.takes_hidden = draw_.one_in(2);
    return limits;
  }

  // The prompts share beginnings with each other, and some continue an earlier answer. Computes the answers, too.
  void make_works() {
    ExecutorLimits plain = small_limits();
    plain.window = limits_.window;
    plain.window_pages = limits_.window > 0 ? plain.total_pages : 0;
    plain.states = limits_.states > 0 ? 1 : 0;
    if (limits_.both_ways) plain = limits_;
    engine::EngineOptions options;
    options.pooling = options_.pooling;
    options.scheduler.max_batch = 1;
    EngineHarness alone(plain, options);
    alone.executor.script = repeats_itself;
    const std::uint32_t count = draw_.between(2, 24);
    for (std::uint64_t id = 1; id <= count; ++id) {
      Work work;
      if (limits_.both_ways || draw_.one_in(8)) {
        work.embed = {RequestId{id}, some_prompt()};
        alone.engine.embed(work.embed);
      } else {
        work.submit = some_request(draw_, id);
        work.submit->prompt = some_prompt();
        alone.engine.submit(*work.submit);
      }
      alone.run();
      works_[id] = std::move(work);
      take_from(alone, id, expected_[id]);
      EXPECT_TRUE(expected_[id].ended() && !expected_[id].failed) << id;
      if (works_[id].submit)
        wholes_.push_back(std::get<Tokens>(works_[id].submit->prompt) + expected_[id].tokens);
    }
  }

  Tokens some_prompt() {
    Tokens prompt;
    if (!wholes_.empty() && draw_.one_in(3))
      prompt = wholes_[draw_.below(static_cast<std::uint32_t>(wholes_.size()))];
    else
      prompt = some_tokens(draw_.below(3), kLongestPrompt);
    prompt.resize(std::min<std::size_t>(prompt.size(), draw_.between(1, kLongestPrompt)));
    if (draw_.one_in(2)) prompt = prompt + some_tokens(draw_.below(1000), draw_.below(20));
    prompt.resize(std::min<std::size_t>(prompt.size(), kLongestPrompt));
    return prompt;
  }

  // The options with a draft model and a source of guesses that are right at times.
  engine::EngineOptions with_guesses() {
    engine::EngineOptions options = options_;
    if (draft_limits_) {
      drafts_.push_back(std::make_unique<FakeExecutor>(*draft_limits_));
      drafts_.back()->script = repeats_itself;
      options.draft_model = drafts_.back().get();
    }
    const double accuracy = draw_.of({-1.0, 0.0, 0.7, 0.95});
    if (accuracy < 0) return options;
    options.draft_source = [this, accuracy](std::span<const ipc::TokenId> tokens) {
      Tokens recorded(tokens.begin(), tokens.end());
      for (const Tokens& whole : wholes_) {
        if (whole.size() > tokens.size() && std::equal(tokens.begin(), tokens.end(), whole.begin()))
          recorded = whole;
      }
      return std::make_unique<engine::RecordedSource>(recorded, accuracy, limits_.vocabulary);
    };
    return options;
  }

  void watch(EngineHarness& harness, Vault& vault) {
    harness.engine.set_ledger(&vault);
    harness.engine.set_state_ledger(&vault);
    harness.executor.script = repeats_itself;
    harness.executor.has_memory = [this] { return !draw_.one_in(4); };
    harness.executor.while_waiting = [this, &harness] {
      harness.now += std::chrono::milliseconds(draw_.below(40));
    };
  }

  // Changes a bit of a page or of saved states that wait for the next sequence that finds them. Nobody would notice it
  // in what a sequence uses. One that was preempted or that found pages just now may have steps in flight.
  void spoil_memory(EngineHarness& harness, const Vault& vault) {
    const engine::Scheduler& scheduler = harness.engine.scheduler();
    const std::uint64_t now = scheduler.preemptions() + scheduler.prefix_figures().hit_tokens;
    if (std::exchange(moves_, now) != now) calm_turns_ = 0;
    const std::uint32_t longest = limits_.context / limits_.page_tokens;
    const bool may =
        limits_.most_pages_summed > 0 && limits_.pages_at_first() > longest + kMostSpoilt;
    if (!may || ++calm_turns_ < 6 || spoilt_ == kMostSpoilt || !draw_.one_in(10)) return;
    const auto used = [&](PageIndex page) {
      return std::ranges::any_of(scheduler.running_sequences(), [&](const engine::Sequence* each) {
        return std::ranges::find(each->pages.pages(), page) != each->pages.pages().end();
      });
    };
    std::vector<PageIndex> pages;
    for (const auto& [page, tokens] : vault.in) {
      if (page.page < limits_.total_pages && !used(page.page)) pages.push_back(page.page);
    }
    std::vector<StateSlot> slots;
    for (const auto& [slot, state] : vault.states) {
      if (!used(state.page)) slots.push_back(slot);
    }
    if (!slots.empty() && draw_.one_in(2)) {
      harness.executor.spoil_states(slots[draw_.below(static_cast<std::uint32_t>(slots.size()))]);
    } else if (!pages.empty()) {
      harness.executor.spoil(pages[draw_.below(static_cast<std::uint32_t>(pages.size()))]);
    } else {
      return;
    }
    harness.now += std::chrono::seconds(2);  // the last comparison is no longer fresh
    ++spoilt_;
  }

  // Requests come, time passes, and things go wrong.
  void serve(EngineHarness& harness, const Vault& vault) {
    for (std::uint32_t turns = draw_.below(150); turns > 0; --turns) {
      while (next_ <= works_.size() && draw_.one_in(3))
        submit(harness, next_++);
      if (limits_.states > 0 && draw_.one_in(20)) harness.executor.steps_to_lose = 1;
      // A request that meets such outputs twice fails.
      if (!poisoned_ && draw_.one_in(60)) {
        poisoned_ = true;
        harness.executor.poisoned_outputs = 1;
      }
      harness.now += std::chrono::milliseconds(draw_.below(300));
      spoil_memory(harness, vault);
      const std::uint64_t victim = 1 + draw_.below(static_cast<std::uint32_t>(works_.size()));
      if (victim < next_ && works_[victim].submit && draw_.one_in(30)) {
        received_[victim].cancelled |= !harness.answer(victim).ended();
        harness.cancel_during_a_step(victim);
      } else {
        harness.turn();
      }
    }
  }

  void submit(EngineHarness& harness, std::uint64_t id) {
    const Work& work = works_.at(id);
    if (!work.submit) return harness.engine.embed(work.embed);
    ipc::Submit request = *work.submit;
    const Received& got = received_[id];
    request.accepted_tokens = got.tokens;
    const std::size_t told = std::get<Tokens>(request.prompt).size();
    if (got.prompt.size() == told) request.tell_prompt = false;
    harness.engine.submit(std::move(request));
  }

  void take_from(EngineHarness& harness, std::uint64_t id, Received& to) {
    add(harness.answer(id), to);
    for (const ipc::FromWorker& message : harness.others) {
      const auto* const embedded = std::get_if<ipc::Embedded>(&message);
      if (embedded != nullptr && embedded->request.value == id) to.embedding = embedded->values;
    }
  }

  void take_answers(EngineHarness& harness) {
    for (std::uint64_t id = 1; id < next_; ++id) {
      if (!received_[id].ended()) take_from(harness, id, received_[id]);
    }
  }

  // The successor of a process that died.
  void inherit(EngineHarness& heir, Vault& again, const Vault& vault) {
    heir.executor.lose_device_in.reset();
    heir.executor.steps_to_lose = heir.executor.poisoned_outputs = 0;
    watch(heir, again);
    const bool unsettled = limits_.states == 0 && draw_.one_in(2);
    const bool adopts = limits_.most_pages_summed > 0 && !draw_.one_in(4);
    std::vector<PageIndex> open;
    if (adopts) {
      again = vault;
      const auto taken = heir.engine.adopt(vault.pages());
      ASSERT_TRUE(taken.ok()) << taken.error().message();
      const auto states = heir.engine.adopt_states(vault.entered_states());
      ASSERT_TRUE(states.ok()) << states.error().message();
      // Pages of slabs that were given back have other memory if they come again.
      const engine::PagePool& pool = heir.engine.scheduler().pool();
      for (const PageIndex page : vault.open) {
        if (unsettled && page < limits_.first_state() && pool.is_present(page))
          open.push_back(page);
      }
      EXPECT_EQ(heir.engine.withhold(open), open.size());
    }
    for (std::uint64_t id = 1; id < next_; ++id) {
      if (received_[id].ended()) continue;
      ++resumed;
      submit(heir, id);
    }
    for (std::uint32_t turns = draw_.below(10); !open.empty() && turns > 0; --turns)
      heir.turn();
    // Until now the dead process's last steps may have written to these pages.
    for (const PageIndex page : open)
      heir.executor.spoil(page);
    heir.engine.settle();
  }

  void compare() {
    for (auto& [id, want] : expected_) {
      SCOPED_TRACE(testing::Message() << "request " << id);
      const Received& got = received_[id];
      ++compared;
      tokens += got.tokens.size();
      if (got.failed) ADD_FAILURE() << got.failed->message;
      EXPECT_EQ(got.embedding, want.embedding);
      if (got.cancelled) {
        EXPECT_LE(got.tokens.size(), want.tokens.size());
        want.tokens.resize(std::min(got.tokens.size(), want.tokens.size()));
        EXPECT_EQ(got.tokens, want.tokens);
        continue;
      }
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_EQ(got.text, want.text);
      EXPECT_EQ(got.logprobs, want.logprobs);
      EXPECT_EQ(got.prompt, want.prompt);
      if (!want.finished) continue;
      ASSERT_TRUE(got.finished);
      EXPECT_EQ(got.finished->reason, want.finished->reason);
      EXPECT_EQ(got.finished->completion_tokens, want.finished->completion_tokens);
    }
  }

  void expect_nothing_kept(EngineHarness& harness) {
    for (int i = 0; i < 60; ++i) {
      harness.now += std::chrono::seconds(1);
      harness.turn();
    }
    const engine::PagePool& pool = harness.engine.scheduler().pool();
    EXPECT_EQ(pool.used_pages(), pool.pages_left_out(engine::PageKind::kFull));
    EXPECT_EQ(pool.windows().used_pages(), 0U);
    // A page that is left out may keep a slab, so that the longest sequence fits.
    if (options_.keep_slabs.count() > 0 && spoilt_ == 0) {
      EXPECT_TRUE(harness.executor.slabs.empty());
    }
  }

  Draw draw_;
  engine::EngineOptions options_;
  ExecutorLimits limits_;
  std::optional<ExecutorLimits> draft_limits_;
  std::vector<std::unique_ptr<FakeExecutor>> drafts_;  // of each process
  std::map<std::uint64_t, Work> works_;
  std::map<std::uint64_t, Received> expected_, received_;
  std::vector<Tokens> wholes_;  // prompts with their answers
  std::uint64_t next_ = 1;      // the request that comes next
  bool poisoned_ = false;       // some output was not a number
  static constexpr std::uint32_t kMostSpoilt = 4;
  std::uint32_t spoilt_ = 0;      // pages and states
  std::uint64_t moves_ = 0;       // preemptions and tokens found in the cache
  std::uint32_t calm_turns_ = 0;  // turns since the last of these
};

TEST(RandomServing, EveryAnswerDependsOnItsRequestAlone) {
  unsigned long first = 1, count = static_cast<unsigned long>(rounds(150));
  if (const char* const asked = std::getenv("BULKHEAD_RANDOM_SERVING"); asked != nullptr) {
    ASSERT_EQ(std::sscanf(asked, "%lu %lu", &first, &count), 2);
  }
  std::uint64_t compared = 0, tokens = 0, resumed = 0;
  for (unsigned long seed = first; seed < first + count && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomServing serving(seed);
    serving.expect_the_same_answers();
    compared += serving.compared;
    tokens += serving.tokens;
    resumed += serving.resumed;
  }
  EXPECT_GT(compared, 0U);
  std::printf("%llu requests, %llu tokens, %llu resumptions\n",
              static_cast<unsigned long long>(compared), static_cast<unsigned long long>(tokens),
              static_cast<unsigned long long>(resumed));
}

}  // namespace
}  // namespace bulkhead::test
