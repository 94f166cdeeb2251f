// Clients' keys, and what each may still ask for.
#include "orchestrator/http/key_limits.hpp"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

const KeyUse::Clock::time_point kStart{};

struct Keys {
  explicit Keys(const std::string& limits) { configure(limits); }
  void configure(const std::string& limits) { all.configure({"alice secret " + limits}, now); }
  // Returns the seconds that a refused request should wait; 0: the request may begin, and has
  // begun.
  int wait() {
    KeyUse* const use = all.find("secret");
    auto result = all.begin(*use, now);
    if (auto* error = std::get_if<ApiError>(&result)) {
      EXPECT_EQ(error->status, 429);
      EXPECT_THAT(error->message, HasSubstr("alice"));
      EXPECT_GT(error->retry_after_s, 0);
      return error->retry_after_s;
    }
    tickets.push_back(std::get<0>(std::move(result)));
    return 0;
  }

  KeyLimits all;
  KeyUse::Clock::time_point now = kStart;
  std::vector<std::shared_ptr<KeyTicket>> tickets;
};

TEST(AccessKey, IsReadWithItsLimitsInAnyOrder) {
  const auto key = config::parse_access_key("  bob.1 s3cret\tstreams=4 requests_per_minute=60 ");
  ASSERT_TRUE(key.ok()) << key.error().message();
  EXPECT_EQ(key->name, "bob.1");
  EXPECT_EQ(key->key, "s3cret");
  EXPECT_EQ(key->streams, 4U);
  EXPECT_EQ(key->requests_per_minute, 60U);
  EXPECT_EQ(key->tokens_per_minute, 0U);
}

TEST(AccessKey, WrongOnesAreRefusedWithoutTheirSecret) {
  for (const char* text : {"", "s3cret", "a\"b s3cret", "bob s3cret streams",
                           "bob s3cret streams=", "bob s3cret s3cret=1", "bob s3cret streams=-1",
                           "bob s3cret streams=4x", "bob s3cret streams=99999999999"}) {
    const auto key = config::parse_access_key(text);
    ASSERT_FALSE(key.ok()) << text;
    EXPECT_EQ(key.error().message().find("s3cret"), std::string::npos) << key.error().message();
  }
}

TEST(KeyLimits, FindsAKeyByItsSecretAlone) {
  KeyLimits limits;
  limits.configure({"alice secret", "bob other"}, kStart);
  EXPECT_EQ(limits.find("other")->key.name, "bob");
  for (const char* secret : {"", "alice", "secre", "secrets", "bob other"})
    EXPECT_EQ(limits.find(secret), nullptr) << secret;
}

TEST(KeyLimits, WithoutALimitThereIsNone) {
  Keys keys("");
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(keys.wait(), 0);
    keys.tickets.back()->charge(1000);
  }
  keys.configure("tokens_per_minute=10");  // what was used before this limit does not count
  EXPECT_EQ(keys.wait(), 0);
}

TEST(KeyLimits, RequestsAMinuteComeBackEvenly) {
  Keys keys("requests_per_minute=6");
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(keys.wait(), 0);
  EXPECT_EQ(keys.wait(), 10);
  keys.now += 7s;
  EXPECT_EQ(keys.wait(), 3);
  keys.now += 3s;
  EXPECT_EQ(keys.wait(), 0);
  EXPECT_EQ(keys.wait(), 10);
  keys.now += 1h;  // the bucket holds no more than one minute's tokens
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(keys.wait(), 0);
  EXPECT_NE(keys.wait(), 0);
  EXPECT_EQ(keys.all.all()[0]->refused, 4U);
  EXPECT_EQ(keys.all.all()[0]->requests, 13U);
}

TEST(KeyLimits, TokensMayBeOverdrawnOnce) {
  Keys keys("tokens_per_minute=60");
  EXPECT_EQ(keys.wait(), 0);
  EXPECT_EQ(keys.wait(), 0);  // nobody knew how long the first answer would become
  keys.tickets[0]->charge(90);
  EXPECT_EQ(keys.wait(), 31);
  keys.now += 31s;
  EXPECT_EQ(keys.wait(), 0);
  EXPECT_EQ(keys.all.all()[0]->tokens, 90U);
}

TEST(KeyLimits, AWaitOfCenturiesIsAWait) {
  Keys keys("tokens_per_minute=1");
  EXPECT_EQ(keys.wait(), 0);
  keys.tickets[0]->charge(std::uint64_t{1} << 40);
  EXPECT_EQ(keys.wait(), std::numeric_limits<int>::max());
}

TEST(KeyLimits, StreamsEndWithTheirTickets) {
  Keys keys("streams=2");
  EXPECT_EQ(keys.wait(), 0);
  EXPECT_EQ(keys.wait(), 0);
  EXPECT_EQ(keys.wait(), 1);
  keys.tickets.pop_back();
  EXPECT_EQ(keys.wait(), 0);
  EXPECT_EQ(keys.wait(), 1);
}

TEST(KeyLimits, ARequestOfAnEarlierDaemonIsInProgressAndCountsItsTokens) {
  Keys keys("requests_per_minute=2 tokens_per_minute=60 streams=1");
  std::shared_ptr<KeyTicket> ticket = keys.all.go_on("alice");
  EXPECT_EQ(ticket->name(), "alice");
  EXPECT_EQ(keys.wait(), 1) << "its one stream";
  ticket->charge(60);
  ticket.reset();
  EXPECT_EQ(keys.wait(), 1) << "its tokens";
  keys.now += 1s;
  EXPECT_EQ(keys.wait(), 0);
  keys.tickets.clear();
  keys.now += 1s;
  EXPECT_EQ(keys.wait(), 0) << "it was no request of this minute";
}

TEST(KeyLimits, ARequestOfAnEarlierDaemonKeepsTheNameOfAKeyThatIsGone) {
  Keys keys("streams=1");
  const std::shared_ptr<KeyTicket> ticket = keys.all.go_on("bob");
  EXPECT_EQ(ticket->name(), "bob");
  ticket->charge(1000);
  EXPECT_EQ(keys.all.all().size(), 1U);
  EXPECT_EQ(keys.wait(), 0);
}

TEST(KeyLimits, NewSettingsForgetNothingThatWasUsed) {
  Keys keys("requests_per_minute=6 streams=10");
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(keys.wait(), 0);
  keys.configure("requests_per_minute=8 streams=5");  // four used, four left, five at a time
  EXPECT_EQ(keys.wait(), 0);
  EXPECT_EQ(keys.wait(), 1);
  keys.tickets.clear();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(keys.wait(), 0);
  EXPECT_GT(keys.wait(), 1);
  keys.all.configure({}, keys.now);  // removed while its requests run
  EXPECT_EQ(keys.all.find("secret"), nullptr);
  keys.tickets[0]->charge(5);
  keys.tickets.clear();
}

}  // namespace
}  // namespace bulkhead::orchestrator
